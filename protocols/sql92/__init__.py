"""
SQL92 filter expressions over message properties, as RocketMQ has them.

``parse(text)`` gives a ``Filter`` whose ``matches(properties)`` says whether a message passes.
Used by the store (pull, pop, push), by the gateway's RocketMQ fronts and by routing rules.

Source: Apache RocketMQ 5.4, package ``org.apache.rocketmq.filter``: grammar, three-valued logic
and the conversions between text and numbers are its; a differential test holds us to it. We
differ where its parser is careless: text after the expression is refused, ``0.0`` is a number, a
comment may end with the text, and size and depth have limits.
"""

from protocols.sql92.evaluation import Filter
from protocols.sql92.parser import parse

__all__ = ["Filter", "parse"]
