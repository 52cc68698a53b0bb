// MQTT.js: node mqttjs.js URL VERSION TOPIC. Subscribes, publishes QoS 0, 1, 2, prints what comes.
// MQTT_CA: file of the authority for mqtts:// and wss://. MQTT_SCRAM: user and password.
const crypto = require("crypto");
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

// RFC 5802, the client's side
const [user, password] = (process.env.MQTT_SCRAM || "").split(" ");
const bare = `n=${user},r=${crypto.randomBytes(18).toString("base64")}`;
const hmac = (key, text) => crypto.createHmac("sha512", key).update(text).digest();
let serverFinal = "";

function scramFinal(challenge) {
  const [nonce, salt, count] = challenge.split(",");
  const key = crypto.pbkdf2Sync(
    password, Buffer.from(salt.slice(2), "base64"), Number(count.slice(2)), 64, "sha512");
  const clientKey = hmac(key, "Client Key");
  const signed = `${bare},${challenge},c=biws,${nonce}`;
  const signature = hmac(crypto.createHash("sha512").update(clientKey).digest(), signed);
  const proof = clientKey.map((byte, index) => byte ^ signature[index]);
  serverFinal = `v=${hmac(hmac(key, "Server Key"), signed).toString("base64")}`;
  return `c=biws,${nonce},p=${Buffer.from(proof).toString("base64")}`;
}

const shown = (data) => ({
  authenticationMethod: "SCRAM-SHA-512", authenticationData: Buffer.from(data),
});
if (user) options.properties = shown(`n,,${bare}`);
const client = mqtt.connect(url, options);
client.handleAuth = (packet, done) => done(null, {
  cmd: "auth",
  reasonCode: 0x18,
  properties: shown(scramFinal(packet.properties.authenticationData.toString())),
});
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
client.on("connect", (connack) => {
  if (user && connack.properties.authenticationData.toString() !== serverFinal) {
    throw new Error("the server has not proved that it knows us");
  }
  client.subscribe(`${topic}/#`, { qos: 2 }, (error) => {
    if (error) throw error;
    for (const qos of [0, 1, 2]) {
      const more = Number(version) === 5 ? { properties } : {};
      client.publish(`${topic}/${qos}`, `hello`, { qos, ...more });
    }
  });
});
