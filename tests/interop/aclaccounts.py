"""The accounts of protected clusters, Apache's and ours, and the topics on which their rights differ."""

from __future__ import annotations

from pathlib import Path

ADMIN = ("rocketmqadmin", "admin-secret-1")
USER = ("rocketmquser", "user-secret-22")
TOPICS = ("Both", "Read", "Write", "Never")
ACCOUNTS = f"""
accounts:
- accessKey: {ADMIN[0]}
  secretKey: {ADMIN[1]}
  admin: true
- accessKey: {USER[0]}
  secretKey: {USER[1]}
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - Both=PUB|SUB
  - Read=SUB
  - Write=PUB
  groupPerms:
  - closed=DENY
"""


def write_accounts(home: Path, text: str = ACCOUNTS) -> None:
    """Write the account file of a broker whose ROCKETMQ_HOME is `home`."""
    path = home / "conf" / "plain_acl.yml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o600)
