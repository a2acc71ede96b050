"""Connections of a client: NameServers, routes, calls, heartbeats, signing, route suspicion."""
