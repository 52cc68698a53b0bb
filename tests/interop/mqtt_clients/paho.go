// Go paho: paho URL VERSION TOPIC. Subscribes, publishes QoS 0, 1, 2, prints what comes.
// MQTT_CA: file of the authority for tls:// and wss://. MQTT_SCRAM: user and password (5.0).
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"os"
	"time"

	mqtt3 "github.com/eclipse/paho.mqtt.golang"
	mqtt5 "github.com/eclipse/paho.golang/paho"
)

func main() {
	address, version, topic := os.Args[1], os.Args[2], os.Args[3]
	received := make(chan string, 10)
	if version == "5" {
		run5(address, topic, received)
	} else {
		run3(address, topic, received)
	}
	for left := 3; left > 0; left-- {
		select {
		case line := <-received:
			fmt.Println(line)
		case <-time.After(20 * time.Second):
			fail(fmt.Errorf("%d messages are missing", left))
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func security() *tls.Config {
	pool := x509.NewCertPool()
	if path := os.Getenv("MQTT_CA"); path != "" {
		pem, err := os.ReadFile(path)
		if err != nil || !pool.AppendCertsFromPEM(pem) {
			fail(fmt.Errorf("no certificate in %s", path))
		}
	}
	return &tls.Config{RootCAs: pool, ServerName: "localhost"}
}

func run3(address, topic string, received chan string) {
	options := mqtt3.NewClientOptions().AddBroker(address).SetClientID("go-3").SetOrderMatters(true)
	options.SetProtocolVersion(4).SetAutoReconnect(false).SetConnectTimeout(10 * time.Second)
	options.SetTLSConfig(security())
	client := mqtt3.NewClient(options)
	wait(client.Connect())
	wait(client.Subscribe(topic+"/#", 2, func(_ mqtt3.Client, m mqtt3.Message) {
		received <- fmt.Sprintf("%s %s %d", m.Topic(), m.Payload(), m.Qos())
	}))
	for qos := byte(0); qos < 3; qos++ {
		wait(client.Publish(fmt.Sprintf("%s/%d", topic, qos), qos, false, "hello"))
	}
}

func wait(token mqtt3.Token) {
	if !token.WaitTimeout(20*time.Second) || token.Error() != nil {
		fail(fmt.Errorf("no answer: %v", token.Error()))
	}
}

func run5(address, topic string, received chan string) {
	parsed, err := url.Parse(address)
	if err != nil {
		fail(err)
	}
	var conn net.Conn
	if parsed.Scheme == "tls" {
		conn, err = tls.Dial("tcp", parsed.Host, security())
	} else {
		conn, err = net.Dial("tcp", parsed.Host)
	}
	if err != nil {
		fail(err)
	}
	proof := newScram()
	client := mqtt5.NewClient(mqtt5.ClientConfig{
		Conn: conn, AuthHandler: proof,
		OnPublishReceived: []func(mqtt5.PublishReceived) (bool, error){
			func(got mqtt5.PublishReceived) (bool, error) {
				p := got.Packet
				received <- fmt.Sprintf("%s %s %d %s", p.Topic, p.Payload, p.QoS, p.Properties.User.Get("k"))
				return true, nil
			}},
	})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	connect := &mqtt5.Connect{ClientID: "go-5", KeepAlive: 30, CleanStart: true}
	if proof.user != "" {
		connect.Properties = &mqtt5.ConnectProperties{AuthMethod: scramMethod, AuthData: []byte("n,," + proof.bare)}
	}
	connack, err := client.Connect(ctx, connect)
	if err != nil {
		fail(err)
	}
	if proof.user != "" && string(connack.Properties.AuthData) != proof.expected {
		fail(fmt.Errorf("the server has not proved that it knows us"))
	}
	filter := mqtt5.SubscribeOptions{Topic: topic + "/#", QoS: 2}
	if _, err := client.Subscribe(ctx, &mqtt5.Subscribe{Subscriptions: []mqtt5.SubscribeOptions{filter}}); err != nil {
		fail(err)
	}
	if proof.user != "" { // once more, subscribed
		again := &mqtt5.AuthProperties{AuthMethod: scramMethod, AuthData: []byte("n,," + proof.bare)}
		if _, err := client.Authenticate(ctx, &mqtt5.Auth{ReasonCode: 0x19, Properties: again}); err != nil {
			fail(err)
		}
	}
	for qos := byte(0); qos < 3; qos++ {
		user := mqtt5.UserProperties{{Key: "k", Value: "v"}}
		_, err := client.Publish(ctx, &mqtt5.Publish{
			Topic: fmt.Sprintf("%s/%d", topic, qos), QoS: qos, Payload: []byte("hello"),
			Properties: &mqtt5.PublishProperties{ContentType: "text/plain", User: user},
		})
		if err != nil {
			fail(err)
		}
	}
}
