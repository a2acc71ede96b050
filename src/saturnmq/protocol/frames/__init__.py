"""Frames: the command of the remoting protocol and its header templates."""
