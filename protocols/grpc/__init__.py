"""The gRPC front: ``apache.rocketmq.v2.MessagingService``, for the official 5.x SDKs."""
