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
  const found = new Set(); // what comes twice on a busy machine counts once
  while (found.size < count) {
    for (const message of await consumer.receive(20).catch(late)) {
      found.add(`${message.body} ${message.properties.get('p') ?? ''}`.trim());
      await consumer.ack(message).catch(late);
    }
  }
  await consumer.shutdown();
  console.log('received', [...found].sort().join(', '));
}

async function push(count) {
  const found = new Set();
  let done, isBack = false;
  const all = new Promise(resolve => { done = resolve; });
  const consumer = new PushConsumer({
    namespace: '', endpoints, logger, consumerGroup: `${prefix}push`, subscriptions: new Map([[topic, '*']]),
    messageListener: {
      async consume(message) {
        const isFirst = `${message.body}` === 'm0' && message.deliveryAttempt === 1;
        found.add(`${message.body}`);
        isBack = isBack || `${message.body}` === 'm0' && message.deliveryAttempt > 1;
        if (found.size === count && isBack) done();
        return isFirst ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    },
  });
  await consumer.startup();
  await all;
  await consumer.shutdown();
  console.log('pushed', [...found].sort().join(', '));
}

async function main() {
  const producer = new Producer({ endpoints, logger, requestTimeout: 20000, topics: [topic, `${prefix}D`], checker: { check: async () => TransactionResolution.COMMIT } });
  await producer.startup();
  await send(producer);
  await receive(6);
  await push(6);
  await producer.shutdown();
  process.exit(0);
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});
