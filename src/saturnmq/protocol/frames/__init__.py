"""Frames of the remoting protocol: the command codec and header templates."""
