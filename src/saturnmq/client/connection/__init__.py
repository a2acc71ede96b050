"""Connections of a client: NameServers, routes, calls, signing, route suspicion."""
