"""Frames of the remoting protocol: the command codec and the decoder of a byte stream."""
