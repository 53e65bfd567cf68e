/**
 * The npm package ali-ons, driven line by line, as interop/src/main/java/orbitmq/Client.java drives the Java client.
 *
 * `node client.js FOLDER`, FOLDER holding node_modules. A request is one line {"id": 1, "verb": "Send", ...}; its answer is one line
 * {"id": 1, "result": ...} or {"id": 1, "error": {"type": ..., "message": ...}}. Requests run side by side, so answers come in any
 * order. The end of standard input ends it.
 */
'use strict';

const path = require('path');
const readline = require('readline');
const { Console } = require('console');

const { Consumer, Message, Producer } = require(path.join(process.argv[2], 'node_modules', 'ali-ons'));

console = new Console(process.stderr, process.stderr); // whatever the library prints is no answer

const opened = new Map();

function options(request) {
  return {
    httpclient: {}, // only asked where name servers are found by HTTP
    nameSrv: request.nameServer,
    // One for each, so that two consumers of a group are two members.
    instanceName: `${process.pid}-${request.name}`,
    accessKeyId: request.accessKey,
    accessKeySecret: request.secretKey,
    namespace: request.options.namespace || '',
  };
}

function asMessage(topic, wanted, orderKey) {
  const body = wanted.bytes === undefined ? Buffer.from(wanted.text) : Buffer.from(wanted.bytes, 'base64');
  const message = new Message(topic, wanted.tag, body);
  Object.assign(message.properties, wanted.properties);
  if (wanted.keys) {
    message.keys = wanted.keys.split(' ');
  }
  if (wanted.delayLevel) {
    message.delayTimeLevel = wanted.delayLevel;
  }
  if (orderKey) {
    message.shardingKey = orderKey;
  }
  return message;
}

function asJson(message, queue) {
  return {
    topic: message.topic,
    id: message.properties.UNIQ_KEY || message.msgId,
    broker: queue === undefined ? '' : queue.brokerName, // not said of a message that comes again
    queue: message.queueId,
    offset: Number(message.queueOffset),
    tag: message.tags,
    keys: message.keys,
    attempt: message.reconsumeTimes,
    properties: message.properties,
    bytes: message.body.toString('base64'),
  };
}

/** What a consumer has received, in order of arrival, kept until asked for. */
class Inbox {
  constructor() {
    this.messages = [];
    this.wake = () => {};
  }

  put(message) {
    this.messages.push(message);
    this.wake();
  }

  async take(count, timeoutMillis) {
    const deadline = Date.now() + timeoutMillis;
    while (this.messages.length < count && Date.now() < deadline) {
      await new Promise(resolve => {
        const timer = setTimeout(resolve, deadline - Date.now());
        this.wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    return this.messages.splice(0);
  }
}

const verbs = {
  async OpenProducer(request) {
    const producer = new Producer({ ...options(request), producerGroup: request.group, sendMsgTimeout: 20000 });
    producer.on('error', error => console.error(error));
    await producer.ready();
    opened.set(request.name, { library: producer });
  },

  async Send(request) {
    const { library } = opened.get(request.name);
    const receipts = [];
    for (const wanted of request.messages) {
      const sent = await library.send(asMessage(request.topic, wanted, request.orderKey));
      receipts.push({ status: sent.sendStatus, id: sent.msgId, queue: sent.messageQueue.queueId, offset: sent.queueOffset });
    }
    return receipts;
  },

  async OpenPushConsumer(request) {
    const consumer = new Consumer({
      ...options(request),
      consumerGroup: request.group,
      isBroadcast: request.broadcasting,
      consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
      ...(request.options.maxReconsumeTimes ? { maxReconsumeTimes: request.options.maxReconsumeTimes } : {}),
    });
    consumer.on('error', error => console.error(error));
    const inbox = new Inbox();
    const filter = request.sql ? { expressionType: 'SQL92', subString: request.sql } : request.tags;
    consumer.subscribe(request.topic, filter, async (message, queue) => {
      inbox.put(asJson(message, queue));
      if (message.reconsumeTimes < request.failFirst) {
        throw new Error('failed on purpose'); // what ACTION_RETRY says is not heard when a message comes again
      }
    });
    await consumer.ready();
    opened.set(request.name, { library: consumer, inbox });
  },

  async Received(request) {
    return await opened.get(request.name).inbox.take(request.count, request.timeoutMillis);
  },

  async Close(request) {
    const { library } = opened.get(request.name);
    opened.delete(request.name);
    await library.close();
  },
};

async function run(request) {
  try {
    return { id: request.id, result: (await verbs[request.verb](request)) ?? null };
  } catch (error) { // whatever it was, the caller waits for an answer
    return { id: request.id, error: { type: error.name, code: error.code, message: String(error.message) } };
  }
}

const lines = readline.createInterface({ input: process.stdin });
lines.on('line', async line => process.stdout.write(JSON.stringify(await run(JSON.parse(line))) + '\n'));
lines.on('close', () => process.exit(0));
