"""Topics as JSON bodies have them: for registration and for 21 and 351."""

from protocols.remoting import bodies
from store.answers import TopicConfig
from store.handlers.context import Context


def topic_body(config: TopicConfig) -> bodies.TopicConfig:
    """A topic as JSON bodies have it."""
    return bodies.TopicConfig(
        topic_name=config.name,
        read_queue_nums=config.read_queue_count,
        write_queue_nums=config.write_queue_count,
        perm=config.perm,
        topic_sys_flag=config.sys_flag,
        order=config.is_ordered,
        attributes=dict(config.attributes),
    )


def topic_table(context: Context) -> bodies.TopicConfigWrapper:
    """All topics and the version of their table; it rises over restarts of the store."""
    topics = {**context.system_topics, **context.engine.catalog.topics}
    return bodies.TopicConfigWrapper(
        topic_config_table={name: topic_body(config) for name, config in topics.items()},
        data_version=table_version(context),
    )


def table_version(context: Context) -> bodies.DataVersion:
    """Rises with every change, and with every start of the store."""
    return bodies.DataVersion(
        timestamp=context.started.wall_ms,
        counter=context.engine.catalog.topics_version + context.config_changes,
    )
