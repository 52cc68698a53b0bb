// RFC 5802, the client's side.
package main

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"os"
	"strconv"
	"strings"

	mqtt5 "github.com/eclipse/paho.golang/paho"
)

const scramMethod = "SCRAM-SHA-256"

type scram struct{ user, password, bare, expected string }

func newScram() *scram {
	parts := strings.SplitN(os.Getenv("MQTT_SCRAM")+" ", " ", 3)
	s := &scram{user: parts[0], password: parts[1]}
	s.bare = "n=" + s.user + ",r=" + rand.Text()
	return s
}

func (s *scram) Authenticated() {}

func (s *scram) Authenticate(a *mqtt5.Auth) *mqtt5.Auth {
	challenge := string(a.Properties.AuthData)
	fields := strings.Split(challenge, ",")
	salt, _ := base64.StdEncoding.DecodeString(fields[1][2:])
	count, _ := strconv.Atoi(fields[2][2:])
	key, err := pbkdf2.Key(sha256.New, s.password, salt, count, 32)
	if err != nil {
		fail(err)
	}
	clientKey := mac(key, "Client Key")
	storedKey := sha256.Sum256(clientKey)
	final := "c=biws," + fields[0]
	signed := s.bare + "," + challenge + "," + final
	for i, b := range mac(storedKey[:], signed) {
		clientKey[i] ^= b
	}
	s.expected = "v=" + base64.StdEncoding.EncodeToString(mac(mac(key, "Server Key"), signed))
	final += ",p=" + base64.StdEncoding.EncodeToString(clientKey)
	answer := &mqtt5.AuthProperties{AuthMethod: scramMethod, AuthData: []byte(final)}
	return &mqtt5.Auth{ReasonCode: 0x18, Properties: answer}
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}
