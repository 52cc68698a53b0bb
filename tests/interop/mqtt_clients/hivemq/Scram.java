import com.hivemq.client.mqtt.datatypes.MqttUtf8String;
import com.hivemq.client.mqtt.mqtt5.Mqtt5ClientConfig;
import com.hivemq.client.mqtt.mqtt5.auth.Mqtt5EnhancedAuthMechanism;
import com.hivemq.client.mqtt.mqtt5.message.auth.Mqtt5Auth;
import com.hivemq.client.mqtt.mqtt5.message.auth.Mqtt5AuthBuilder;
import com.hivemq.client.mqtt.mqtt5.message.auth.Mqtt5EnhancedAuthBuilder;
import com.hivemq.client.mqtt.mqtt5.message.connect.Mqtt5Connect;
import com.hivemq.client.mqtt.mqtt5.message.connect.connack.Mqtt5ConnAck;
import com.hivemq.client.mqtt.mqtt5.message.disconnect.Mqtt5Disconnect;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Base64;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import javax.crypto.Mac;
import javax.crypto.SecretKeyFactory;
import javax.crypto.spec.PBEKeySpec;
import javax.crypto.spec.SecretKeySpec;

/** RFC 5802, the client's side, as HiveMQ's client wants a method: SCRAM-SHA-256. */
public class Scram implements Mqtt5EnhancedAuthMechanism {
    private final String password;
    private final String bare;
    private String expected = "";

    Scram(String[] login) {
        password = login[1];
        bare = "n=" + login[0] + ",r=" + UUID.randomUUID();
    }

    @Override
    public MqttUtf8String getMethod() {
        return MqttUtf8String.of("SCRAM-SHA-256");
    }

    @Override
    public int getTimeout() {
        return 20;
    }

    @Override
    public CompletableFuture<Void> onAuth(
            Mqtt5ClientConfig config, Mqtt5Connect connect, Mqtt5EnhancedAuthBuilder builder) {
        builder.data(("n,," + bare).getBytes());
        return CompletableFuture.completedFuture(null);
    }

    @Override
    public CompletableFuture<Void> onReAuth(Mqtt5ClientConfig config, Mqtt5AuthBuilder builder) {
        builder.data(("n,," + bare).getBytes());
        return CompletableFuture.completedFuture(null);
    }

    @Override
    public CompletableFuture<Boolean> onContinue(
            Mqtt5ClientConfig config, Mqtt5Auth auth, Mqtt5AuthBuilder builder) {
        try {
            String challenge = text(auth.getData());
            String[] fields = challenge.split(",");
            byte[] salt = Base64.getDecoder().decode(fields[1].substring(2));
            int count = Integer.parseInt(fields[2].substring(2));
            byte[] key = SecretKeyFactory.getInstance("PBKDF2WithHmacSHA256")
                .generateSecret(new PBEKeySpec(password.toCharArray(), salt, count, 256))
                .getEncoded();
            byte[] proof = mac(key, "Client Key");
            byte[] storedKey = MessageDigest.getInstance("SHA-256").digest(proof);
            String signed = bare + "," + challenge + ",c=biws," + fields[0];
            byte[] signature = mac(storedKey, signed);
            for (int i = 0; i < proof.length; i++) {
                proof[i] ^= signature[i];
            }
            expected = "v=" + encoded(mac(mac(key, "Server Key"), signed));
            builder.data(("c=biws," + fields[0] + ",p=" + encoded(proof)).getBytes());
            return CompletableFuture.completedFuture(true);
        } catch (Exception error) {
            return CompletableFuture.failedFuture(error);
        }
    }

    @Override
    public CompletableFuture<Boolean> onAuthSuccess(Mqtt5ClientConfig config, Mqtt5ConnAck ack) {
        return CompletableFuture.completedFuture(
            expected.equals(text(ack.getEnhancedAuth().orElseThrow().getData())));
    }

    @Override
    public CompletableFuture<Boolean> onReAuthSuccess(Mqtt5ClientConfig config, Mqtt5Auth auth) {
        return CompletableFuture.completedFuture(expected.equals(text(auth.getData())));
    }

    @Override
    public void onAuthRejected(Mqtt5ClientConfig config, Mqtt5ConnAck ack) {
        System.err.println("rejected: " + ack.getReasonCode());
    }

    @Override
    public void onReAuthRejected(Mqtt5ClientConfig config, Mqtt5Disconnect disconnect) {
        System.err.println("rejected: " + disconnect.getReasonCode());
    }

    @Override
    public void onAuthError(Mqtt5ClientConfig config, Throwable cause) {
        cause.printStackTrace();
    }

    @Override
    public void onReAuthError(Mqtt5ClientConfig config, Throwable cause) {
        cause.printStackTrace();
    }

    private static String text(Optional<ByteBuffer> data) {
        return StandardCharsets.UTF_8.decode(data.orElseThrow()).toString();
    }

    private static String encoded(byte[] data) {
        return Base64.getEncoder().encodeToString(data);
    }

    private static byte[] mac(byte[] key, String text) throws Exception {
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(key, "HmacSHA256"));
        return mac.doFinal(text.getBytes());
    }
}
