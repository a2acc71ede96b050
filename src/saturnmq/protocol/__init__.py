"""RocketMQ remoting protocol: frames, headers, bodies, message records, codes. Pure: no I/O, no clock, no asyncio."""
