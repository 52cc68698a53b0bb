import com.hivemq.client.mqtt.MqttClient;
import com.hivemq.client.mqtt.MqttClientSslConfig;
import com.hivemq.client.mqtt.MqttWebSocketConfig;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.mqtt3.Mqtt3BlockingClient;
import com.hivemq.client.mqtt.mqtt5.Mqtt5BlockingClient;
import java.io.FileInputStream;
import java.net.URI;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.TrustManagerFactory;

/**
 * HiveMQ's client: HiveMq URL VERSION TOPIC. Subscribes, publishes QoS 0, 1, 2, prints.
 * MQTT_CA: file of the authority for tls:// and wss://. MQTT_SCRAM: user and password (5.0).
 */
public class HiveMq {
    public static void main(String[] arguments) throws Exception {
        URI uri = URI.create(arguments[0]);
        String topic = arguments[2];
        var builder = MqttClient.builder().identifier("hivemq-" + ProcessHandle.current().pid())
            .serverHost(uri.getHost()).serverPort(uri.getPort());
        String authority = System.getenv("MQTT_CA");
        if (authority != null) {
            builder = builder.sslConfig(MqttClientSslConfig.builder()
                .trustManagerFactory(trusting(authority)).build());
        }
        if (uri.getScheme().startsWith("ws")) {
            builder = builder.webSocketConfig(
                MqttWebSocketConfig.builder().serverPath("mqtt").build());
        }
        if (arguments[1].equals("5")) {
            var version5 = builder.useMqttVersion5();
            String login = System.getenv("MQTT_SCRAM");
            if (login != null) {
                version5 = version5.enhancedAuth(new Scram(login.split(" ")));
            }
            run5(version5.buildBlocking(), topic, login != null);
        } else {
            run3(builder.useMqttVersion3().buildBlocking(), topic);
        }
        System.exit(0);
    }

    static TrustManagerFactory trusting(String path) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (var file = new FileInputStream(path)) {
            store.setCertificateEntry("ca",
                CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        var factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(store);
        return factory;
    }

    static void run5(Mqtt5BlockingClient client, String topic, boolean again) throws Exception {
        client.connect();
        try (var publishes = client.publishes(com.hivemq.client.mqtt.MqttGlobalPublishFilter.ALL)) {
            client.subscribeWith().topicFilter(topic + "/#").qos(MqttQos.EXACTLY_ONCE).send();
            if (again) {
                client.reauth();
            }
            for (MqttQos qos : MqttQos.values()) {
                client.publishWith().topic(topic + "/" + qos.getCode()).qos(qos)
                    .payload("hello".getBytes()).contentType("text/plain")
                    .userProperties().add("k", "v").applyUserProperties().send();
            }
            for (int left = 3; left > 0; left--) {
                var got = publishes.receive(20, TimeUnit.SECONDS).orElseThrow();
                System.out.println(got.getTopic() + " " + new String(got.getPayloadAsBytes()) + " "
                    + got.getQos().getCode() + " "
                    + got.getUserProperties().asList().get(0).getValue());
            }
        }
        client.disconnect();
    }

    static void run3(Mqtt3BlockingClient client, String topic) throws Exception {
        client.connect();
        try (var publishes = client.publishes(com.hivemq.client.mqtt.MqttGlobalPublishFilter.ALL)) {
            client.subscribeWith().topicFilter(topic + "/#").qos(MqttQos.EXACTLY_ONCE).send();
            for (MqttQos qos : MqttQos.values()) {
                client.publishWith().topic(topic + "/" + qos.getCode()).qos(qos)
                    .payload("hello".getBytes()).send();
            }
            for (int left = 3; left > 0; left--) {
                var got = publishes.receive(20, TimeUnit.SECONDS).orElseThrow();
                System.out.println(got.getTopic() + " " + new String(got.getPayloadAsBytes()) + " "
                    + got.getQos().getCode());
            }
        }
        client.disconnect();
    }
}
