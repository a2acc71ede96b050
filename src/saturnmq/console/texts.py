"""Texts of the console in the language of a page: English is in the code, other languages are gettext catalogs in locale/.

Templates and handlers ask for a text by its English: `_("Disk used")`, `page.gettext("Done.")`, and `pgettext("job", "Search")`
where one English text has several translations. `make texts` collects all of them with Babel and compiles the catalogs, which the
standard library reads. A text with values has their names in braces.

Requirements: UX-11.
"""

from __future__ import annotations

import gettext
from functools import cache
from pathlib import Path
from typing import Final

LANGUAGES: Final = {"en": "English", "zh": "中文"}
CATALOGS: Final = Path(__file__).parent / "locale"


def N_(message: str) -> str:
    """Mark a text for the catalogs that is translated later."""
    return message


def NC_(context: str, message: str) -> str:
    """Mark a text, which is translated with this context."""
    return message


class Texts:
    """The texts of a language; English for one without a catalog, and for a text that its catalog does not have."""

    def __init__(self, language: str) -> None:
        self._catalog = gettext.translation("console", CATALOGS, [language], fallback=True)

    def gettext(self, message: str, /, **values: object) -> str:
        """The translation of an English text, with the values of its names."""
        text = self._catalog.gettext(message)
        return text.format(**values) if values else text

    def pgettext(self, context: str, message: str, /) -> str:
        """The translation of a text that has another one elsewhere."""
        return self._catalog.pgettext(context, message)


texts_of: Final = cache(Texts)

# Texts of values that clusters, rules and jobs have, by value.
LABELS: Final = {
    "alarm": {
        "cluster": NC_("alarm", "cluster not reachable"),
        "missing": NC_("alarm", "members not registered"),
        "lag": NC_("alarm", "lag"),
        "disk": NC_("alarm", "disk"),
        "slave": NC_("alarm", "slave behind"),
        "dead_letters": NC_("alarm", "dead letters"),
        "broker": NC_("alarm", "broker does not answer"),
        "leader": NC_("alarm", "no master"),
        "members": NC_("alarm", "too few clients"),
        "head_wait": NC_("alarm", "requests wait"),
        "page_cache": NC_("alarm", "page cache busy"),
    },
    "limit": {
        "lag": N_("Lag of a group, messages"),
        "disk": N_("Disk used, percent"),
        "slave_bytes": N_("Slave behind, bytes"),
        "dead_letters": N_("New dead letters in 10 min"),
        "head_wait": N_("Oldest waiting send or pull, ms"),
        "page_cache": N_("Append in progress, ms"),
    },
    "conflict": {
        "client_id": N_("Two connections use one client id; queues are assigned wrongly:"),
        "subscriptions": N_("Members of the group subscribe differently; messages may be lost:"),
    },
    "form": {"json": N_("JSON"), "avro": N_("Avro"), "text": N_("text"), "hex": N_("binary")},
    "gap": {
        "SEND": N_("no record of the send: the producer did not trace, or its record was lost"),
        "DECISION": N_("a half message without a decision: it is pending, or the record was lost"),
        "BEGIN": N_("a delivery without a begin: the record was lost"),
        "END": N_("a delivery without an end: it is in progress, or the record was lost"),
    },
    "group": {
        "retry_queue_nums": N_("Retry queues"),
        "retry_max_times": N_("Retries at most"),
        "broker_id": N_("Broker id to read from"),
        "which_broker_when_consume_slowly": N_("Broker id when far behind"),
        "consume_enable": N_("May consume"),
        "consume_from_min_enable": N_("May begin at the first offset"),
        "consume_broadcast_enable": N_("May broadcast"),
        "notify_consumer_ids_changed_enable": N_("Notify of client changes"),
    },
    "job": {
        "search": NC_("job", "Search"),
        "tail": NC_("job", "Live tail"),
        "analysis": NC_("job", "Analysis"),
        "running": NC_("job", "running"),
        "complete": NC_("job", "complete"),
        "enough": NC_("job", "complete up to the limit"),
        "limit": NC_("job", "ended at the limit of time or messages"),
        "left": NC_("job", "ended, because no page showed it"),
        "cancelled": NC_("job", "cancelled"),
        "failed": NC_("job", "failed"),
    },
    "kind": {
        "normal": N_("normal"),
        "retry": N_("retry"),
        "dead": N_("dead letters"),
        "all": N_("all"),
        "system": N_("system"),
    },
    "pool": {"send": N_("Send"), "pull": N_("Pull"), "query": N_("Query")},
    "range": {"1h": N_("Last hour"), "6h": N_("Last 6 hours"), "24h": N_("Last 24 hours")},
    "show": {"": N_("By its type"), "text": N_("As text"), "hex": N_("Hexadecimal")},
    "track": {
        "CONSUMED": NC_("track", "consumed"),
        "CONSUMED_BUT_FILTERED": NC_("track", "passed, but filtered out"),
        "PULL": NC_("track", "pull consumer: not known"),
        "NOT_CONSUME_YET": NC_("track", "not consumed yet"),
        "NOT_ONLINE": NC_("track", "no client is connected"),
        "UNKNOWN": NC_("track", "not known"),
    },
}
