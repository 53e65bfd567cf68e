"""Operations on a cluster, as functions that return values: what `mqadmin` does, for programs.

    from orbitmq.admin.session import open_session
    from orbitmq.admin.topics import list_topics

    async with open_session("127.0.0.1:9876") as session:
        for topic in await list_topics(session):
            print(topic.topic, topic.write_queues)

Every function takes the session first and returns frozen structs; their fields are what the `orbitmq` command prints as JSON.
They work on Apache's clusters, 4.9 and 5.x, and on ours.

Java: DefaultMQAdminExt
"""
