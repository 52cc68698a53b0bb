// Program ENDPOINTS PREFIX: sends, recalls, receives and is pushed to; prints what it got.
const { Producer, SimpleConsumer, PushConsumer, ConsumeResult, TransactionResolution } = require('rocketmq-client-nodejs');

const [endpoints, prefix] = process.argv.slice(2);
const topic = `${prefix}T`;

const silent = () => {};
const logger = { debug: silent, info: silent, warn: silent, error: silent };

/** A poll that a busy machine answered too late brought nothing. */
function late(error) {
  console.error(error);
  return [];
}

async function send(producer) {
  for (let i = 0; i < 3; i++) {
    await producer.send({ topic, tag: 't', keys: [`k${i}`], properties: new Map([['p', `v${i}`]]), body: Buffer.from(`m${i}`) });
  }
  await producer.send({ topic, tag: 't', delay: 1500, body: Buffer.from('soon') });
  await producer.send({ topic, tag: 't', messageGroup: 'g', body: Buffer.from('fifo') });
  const held = await producer.send({ topic: `${prefix}D`, tag: 't', delay: 3600000, body: Buffer.from('never') });
  const recalled = await producer.recallMessage(`${prefix}D`, held.recallHandle);
  console.log('recalled', recalled.messageId === held.messageId);
  const transaction = producer.beginTransaction();
  await producer.send({ topic: `${prefix}T`, tag: 't', body: Buffer.from('committed') }, transaction);
  await transaction.commit();
}

async function receive(count) {
  const subscriptions = new Map([[topic, 't']]);
  const consumer = new SimpleConsumer({ consumerGroup: `${prefix}simple`, endpoints, logger, subscriptions, requestTimeout: 10000 });
  await consumer.startup();
  const found = [];
  while (found.length < count) {
    for (const message of await consumer.receive(20).catch(late)) {
      found.push(`${message.body} ${message.properties.get('p') ?? ''}`.trim());
      await consumer.ack(message);
    }
  }
  await consumer.shutdown();
  console.log('received', found.sort().join(', '));
}

async function push(count) {
  const found = [];
  let done;
  const all = new Promise(resolve => { done = resolve; });
  const consumer = new PushConsumer({
    namespace: '', endpoints, logger, consumerGroup: `${prefix}push`, subscriptions: new Map([[topic, '*']]),
    messageListener: {
      async consume(message) {
        found.push(`${message.body}:${message.deliveryAttempt}`);
        if (found.length === count) done();
        return `${message.body}` === 'm0' && message.deliveryAttempt === 1 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    },
  });
  await consumer.startup();
  await all;
  await consumer.shutdown();
  console.log('pushed', found.sort().join(', '));
}

async function main() {
  const producer = new Producer({ endpoints, logger, topics: [topic, `${prefix}D`], checker: { check: async () => TransactionResolution.COMMIT } });
  await producer.startup();
  await send(producer);
  await receive(6);
  await push(7);
  await producer.shutdown();
  process.exit(0);
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});
