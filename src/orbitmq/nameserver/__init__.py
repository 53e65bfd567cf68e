"""The name server: who the brokers are, and where each topic's queues lie. Java: the `namesrv` module"""
