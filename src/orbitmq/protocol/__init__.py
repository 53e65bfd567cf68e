"""What is said on the wire. Sans-IO: bytes in, commands out, and back. Java: the `remoting` module's `protocol` package."""
