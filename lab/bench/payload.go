package main

import (
	"encoding/hex"
	"math/rand/v2"
)

// order is a request of 1 KiB as clients send it: members in the order of their meaning, nested objects, amounts, an
// escape or two.
const order = `{"reference":"ORD-2024-000184","customer":{"id":"cus_9s6XKzkNRiz8i3","name":"Zo\u00eb Brontë",` +
	`"email":"zoe@example.com","phone":"+44 20 7946 0958","vip":false},"currency":"EUR","total":184.97,` +
	`"tax":30.83,"discount":0.5,"lines":[{"sku":"KB-87-ISO","title":"Keyboard, 87 keys","quantity":1,` +
	`"price":129.99,"gift":false},{"sku":"MS-02","title":"Mouse \"silent\"","quantity":2,"price":19.99,` +
	`"gift":true},{"sku":"CB-C-200","title":"Cable USB-C 2m","quantity":1,"price":15,"gift":false}],` +
	`"shipping":{"method":"express","street":"12 Haworth Rd\nFlat 3","city":"Keighley","postcode":"BD22 8DU",` +
	`"country":"GB","instructions":null,"window":{"from":"2024-05-03T09:00:00Z","to":"2024-05-03T12:00:00Z"}},` +
	`"payment":{"method":"card","token":"tok_1MzxLq2eZvKYlo2CqQTfYQ4B","capture":true,"amount":18497},` +
	`"metadata":{"source":"web","campaign":"spring-2024","session":"0f8fad5b-d9cb-469f-a165-70867728950e",` +
	`"ip":"203.0.113.42","attempt":1},"notes":"Leave with the neighbour if nobody is in."}`

// answer is what the handlers reply, and what the databases store: about 200 bytes of JSON.
const answer = `{"id":"pay_1MzxLq2eZvKYlo2CqQTfYQ4B","status":"succeeded","amount":18497,"currency":"EUR",` +
	`"reference":"ORD-2024-000184","customer":"cus_9s6XKzkNRiz8i3","created":"2024-05-02T10:11:12Z","livemode":true}`

// The rest of the answer.
const (
	contentType = "application/json"
	location    = "/payments/pay_1MzxLq2eZvKYlo2CqQTfYQ4B"
)

// newKey returns a random UUID: what clients send. Its quality does not matter here, but its cost would.
func newKey() string {
	var random [16]byte
	high, low := rand.Uint64(), rand.Uint64()
	for i := range 8 {
		random[i], random[8+i] = byte(high>>(8*i)), byte(low>>(8*i))
	}
	var text [36]byte
	hex.Encode(text[:8], random[:4])
	hex.Encode(text[9:13], random[4:6])
	hex.Encode(text[14:18], random[6:8])
	hex.Encode(text[19:23], random[8:10])
	hex.Encode(text[24:], random[10:])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}

func newKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = newKey()
	}
	return keys
}
