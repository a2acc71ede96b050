"""Command lines on NameServers that are compared with mqadmin's."""

from __future__ import annotations

from admin_compare import Line

LINES = (
    Line("getNamesrvConfig", rows_sorted=True),
    Line("updateNamesrvConfig -k orderMessageEnable -v false", writes=True),
    Line("updateKvConfig -s space -k {side} -v text", writes=True),
    Line("deleteKvConfig -s space -k {side}2", writes=True, before=("updateKvConfig -s space -k {side}2 -v text",)),
    Line("deleteKvConfig -s space -k {side}3", writes=True),
    Line("wipeWritePerm -b unknown", writes=True),
    Line("addWritePerm -b unknown", writes=True),
)
