"""Group consumers: membership and rebalance, the pull loop of each queue, settling, offsets, listeners."""
