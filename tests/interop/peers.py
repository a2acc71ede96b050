"""The servers that a scenario runs against."""

from __future__ import annotations

import apache
import saturn

Peer = apache.ApacheCluster | saturn.SaturnCluster
