// MQTT.js: node mqttjs.js URL VERSION TOPIC. Subscribes, publishes QoS 0, 1, 2, prints what comes.
// MQTT_CA: file of the authority for mqtts:// and wss://.
const fs = require("fs");
const mqtt = require("mqtt");

const [url, version, topic] = process.argv.slice(2);
const options = {
  protocolVersion: Number(version),
  clientId: `mqttjs-${process.pid}`,
  reconnectPeriod: 0,
  connectTimeout: 10000,
};
if (process.env.MQTT_CA) options.ca = fs.readFileSync(process.env.MQTT_CA);
const client = mqtt.connect(url, options);
const properties = { contentType: "text/plain", userProperties: { k: "v" } };
let left = 3;

client.on("error", (error) => {
  console.error(error);
  process.exit(1);
});
client.on("message", (name, payload, packet) => {
  const user = packet.properties ? packet.properties.userProperties.k : "";
  console.log(`${name} ${payload} ${packet.qos} ${user}`.trim());
  left -= 1;
  if (left === 0) client.end(false, {}, () => process.exit(0));
});
client.on("connect", () => {
  client.subscribe(`${topic}/#`, { qos: 2 }, (error) => {
    if (error) throw error;
    for (const qos of [0, 1, 2]) {
      const more = Number(version) === 5 ? { properties } : {};
      client.publish(`${topic}/${qos}`, `hello`, { qos, ...more });
    }
  });
});
