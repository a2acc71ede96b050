"""Command lines that export; the files are compared, too."""

from __future__ import annotations

from admin_compare import Line

RATES = ((r'"\d+\.[^"]*"|\d+\.\d+(E-?\d+)?', "RATE"),)

LINES = (
    Line("exportMetadata -c DefaultCluster -f {folder}", files=("metadata.json",)),
    Line("exportMetadata -c DefaultCluster -s -f {folder}", files=("metadata.json",)),
    Line("exportMetadata -c DefaultCluster -t -f {folder}", files=("topic.json",)),
    Line("exportMetadata -c DefaultCluster -g -f {folder}", files=("subscriptionGroup.json",)),
    Line("exportMetadata -c DefaultCluster -tg -f {folder}", files=("topic.json",)),
    Line("exportMetadata -b {broker} -t -s -f {folder}", files=("topic.json",)),
    Line("exportMetadata -b {broker} -g -f {folder}", files=("subscriptionGroup.json",)),
    Line("exportMetadata -b {broker} -f {folder}", code=1),
    Line("exportMetadata -f {folder}", code=1),
    Line("exportConfigs -c DefaultCluster -f {folder}", files=("configs.json",)),
    Line("exportMetrics -c DefaultCluster -f {folder}", files=("metrics.json",), masks=RATES),
)
