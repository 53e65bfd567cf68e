"""The broker: takes messages, keeps them, and hands them out. Java: the `broker` module"""
