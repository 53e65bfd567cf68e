"""The custom fields of each request and answer, one struct each, grouped by subject. Java: `protocol.header`"""
