"""The JSON bodies of requests and answers, one struct each, grouped by subject. Java: `protocol.body`, `protocol.route`"""
