"""Command lines on accounts that are compared with mqadmin's, on brokers with access control."""

from __future__ import annotations

from admin_compare import Allowed, Line

OURS, BOTH = ("acl",), ("acl", "acl-apache")
ECHO = Allowed(
    r"org\.apache\.rocketmq\.common\.PlainAccessConfig@.*",
    "ACCOUNT",
    "Java prints the address of an object, ours the account without its secret key",
)
MASKED = Allowed(r"(secretKey +: ).*", r"\1******", "ours prints no secret key that a broker sends")
UNKNOWN_CLUSTER = Allowed(r"\A[^\[]*(\[error\][^.]*\.)[^\0]*", r"\1", "ours stops there, and claims no success")
ACCOUNT = ((r"PlainAccessConfig \[.*\]$", "ACCOUNT"),)
RIGHTS = "-t a=PUB,b=SUB|PUB -g group=DENY -i DENY -u SUB -w 10.0.0.*"
NEW = "updateAclConfig -c DefaultCluster -s secret-key-1 -a"

LINES = (
    Line("getAclConfig -b {broker}", kinds=BOTH, allowed=(MASKED,)),
    Line("getAccessConfigSubCommand -c DefaultCluster", kinds=BOTH, allowed=(MASKED,)),
    Line("getAclConfig -c Nowhere", kinds=BOTH, code=1),
    Line("clusterAclConfigVersion -b {broker}", kinds=BOTH),
    Line("clusterAclConfigVersion -c DefaultCluster", kinds=BOTH),
    Line("clusterAclConfigVersion -c Nowhere", kinds=BOTH, code=1, allowed=(UNKNOWN_CLUSTER,)),
    Line(f"{NEW} {{side}}Plain", writes=True, kinds=BOTH, allowed=(ECHO,), masks=ACCOUNT),
    Line(
        f"updateAclConfig -b {{broker}} -a {{side}}Rights -s secret-key-1 {RIGHTS} -m true",
        writes=True, kinds=BOTH, allowed=(ECHO,), masks=ACCOUNT,
    ),
    Line(f"{NEW} {{side}}Wrong -t a=ALL", writes=True, kinds=BOTH, code=1),
    Line(f"{NEW} x", writes=True, kinds=BOTH, code=1),
    Line("updateAclConfig -c Nowhere -a abcdefgh -s secret-key-1", writes=True, kinds=BOTH, code=1, allowed=(UNKNOWN_CLUSTER,)),
    Line("deleteAclConfig -c DefaultCluster -a {side}Gone", writes=True, kinds=BOTH, before=(f"{NEW} {{side}}Gone",)),
    Line("deleteAccessConfig -b {broker} -a {side}Gone2", writes=True, kinds=BOTH, before=(f"{NEW} {{side}}Gone2",)),
    Line("deleteAclConfig -c DefaultCluster -a {side}Unknown", writes=True, kinds=BOTH, code=1),
    Line("updateGlobalWhiteAddr -c DefaultCluster -g 10.10.103.*,10.11.0.1", writes=True, kinds=OURS),
    Line("updateGlobalWhiteAddr -b {broker} -g 10.10.104.* -p {acl_file}", writes=True, kinds=BOTH),
    Line("updateGlobalWhiteAddr -b {broker} -g 10.10.104.* -p /nowhere.yml", writes=True, kinds=BOTH, code=1),
)  # fmt: skip
