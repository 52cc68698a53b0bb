// RFC 5802, the client's side.
package main

import (
	"crypto/hmac"
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
	s.bare = "n=" + s.user + ",r=" + nonce()
	return s
}

func (s *scram) Authenticated() {}

func (s *scram) Authenticate(a *mqtt5.Auth) *mqtt5.Auth {
	challenge := string(a.Properties.AuthData)
	fields := strings.Split(challenge, ",")
	salt, _ := base64.StdEncoding.DecodeString(fields[1][2:])
	count, _ := strconv.Atoi(fields[2][2:])
	key := salted([]byte(s.password), salt, count)
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

func nonce() string {
	random := make([]byte, 18)
	rand.Read(random)
	return base64.StdEncoding.EncodeToString(random)
}

// One block of PBKDF2 (RFC 8018) is all that SHA-256 wants; Go has it itself since 1.24 only.
func salted(password, salt []byte, count int) []byte {
	last := mac(password, string(salt)+"\x00\x00\x00\x01")
	key := append([]byte{}, last...)
	for ; count > 1; count-- {
		last = mac(password, string(last))
		for at := range key {
			key[at] ^= last[at]
		}
	}
	return key
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}
