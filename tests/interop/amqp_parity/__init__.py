"""
What a client sees of a broker: one function per subject, run against RabbitMQ and against ours.

Each gets a fresh ``Client`` and returns what it observed, as plain data. Names of queues and
exchanges are the function's own, so that scripts do not meet.
"""

from collections.abc import Callable

from tests.interop.amqp_parity import consuming, letters, limits, refusals, routing
from tests.interop.amqp_parity.client import Client, Seen

SCRIPTS: tuple[Callable[[Client], Seen], ...] = (
    limits.queue_ttl,
    limits.message_ttl_at_the_head_only,
    limits.the_shorter_ttl_counts,
    limits.ttl_zero,
    limits.idle_queue_goes,
    limits.max_length_drops_the_head,
    limits.unacked_do_not_count,
    limits.max_bytes_are_bodies,
    limits.reject_publish,
    limits.reject_publish_by_bytes,
    limits.one_of_two_queues_rejects,
    limits.reject_publish_dlx,
    letters.rejected_letters,
    letters.expired_letters_by_the_default_exchange,
    letters.dropped_letters_keep_their_keys,
    letters.a_retry_ladder,
    letters.a_cycle_without_a_reject_ends,
    letters.no_exchange_for_letters,
    letters.an_alternate_exchange_takes_letters,
    consuming.priorities,
    consuming.drop_head_drops_the_highest,
    consuming.single_active,
    consuming.delivery_limit,
    consuming.counts,
    consuming.get_counts_and_recover,
    consuming.consumers_hear_of_the_end,
    consuming.auto_delete,
    consuming.what_a_closed_connection_leaves,
    consuming.consumers_with_more_priority,
    consuming.requeued_in_place,
    consuming.prefetch,
    consuming.a_limit_of_the_channel_is_shared,
    consuming.an_exclusive_queue_that_deletes_itself,
    consuming.transactions,
    consuming.what_is_delivered,
    routing.alternate_exchanges,
    routing.exchanges_bound_to_exchanges,
    routing.headers_exchange,
    routing.mandatory_returns,
    routing.direct_reply_to,
    routing.direct_reply_to_faults,
    routing.more_keys_in_headers,
    routing.keys_in_headers_go_on_behind_exchanges,
    routing.exchanges_that_delete_themselves,
    routing.names_lose_their_line_ends,
    routing.topics,
    routing.topics_shared_with_other_protocols,
    routing.an_exchange_before_the_shared_one,
    routing.a_queue_behind_both,
    routing.an_exchange_behind_the_shared_one,
    routing.names_left_to_the_server,
    refusals.unlike_declarations,
    refusals.bad_arguments,
    refusals.quorum_properties,
    refusals.exclusive_use,
    refusals.refusals,
    refusals.exchanges_refused,
    refusals.methods_refused,
    refusals.more_unlike_declarations,
    refusals.large_arguments,
)
