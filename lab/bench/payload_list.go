package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

// listedPayment is one of the payments in an answer of 4 KiB.
type listedPayment struct {
	ID        string         `json:"id"`
	Status    string         `json:"status"`
	Amount    int            `json:"amount"`
	Currency  string         `json:"currency"`
	Reference string         `json:"reference"`
	Customer  listedCustomer `json:"customer"`
	Created   time.Time      `json:"created"`
	Livemode  bool           `json:"livemode"`
}

type listedCustomer struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Email string `json:"email"`
}

// What customers are called, and what becomes of payments.
var (
	firstNames = strings.Fields(`Ada Bruno Chiara Dmitri Elif Farid Greta Hugo Ines Jonas Karim Lena Marek Noor Olga Pedro
		Quentin Rosa Sven Tomas Uma Viktor Wanda Ximena Yusuf Zoë`)
	lastNames = strings.Fields(`Almeida Brontë Castro Dubois Eriksen Fischer García Horvat Ivanova Jansen Kowalski Lindqvist
		Moreau Novák Okafor Petrov Quispe Rossi Schmidt Tanaka Ünal Vargas Weber Xu Yilmaz Zimmermann`)
	mailHosts = []string{"example.com", "example.org", "mail.example.net"}
	statuses  = []string{"succeeded", "succeeded", "succeeded", "refunded", "failed"}
)

// listSize is how long an answer with a list may be.
const listSize = 4096

// listAnswer is a page of payments, as many as fit into 4 KiB: ids and amounts that no two of them share, names, times.
// It is the same in each run.
var listAnswer = sync.OnceValue(func() []byte {
	random := rand.New(rand.NewPCG(1, 2))
	created := time.Date(2024, 5, 2, 10, 11, 12, 0, time.UTC)
	var list []listedPayment
	var page []byte
	for {
		created = created.Add(time.Duration(random.IntN(7200)) * time.Second)
		list = append(list, drawPayment(random, created))
		longer, _ := json.Marshal(map[string]any{"data": list, "has_more": true}) // it cannot fail for these types
		if len(longer) > listSize {
			return page
		}
		page = longer
	}
})

func drawPayment(random *rand.Rand, created time.Time) listedPayment {
	first, last := firstNames[random.IntN(len(firstNames))], lastNames[random.IntN(len(lastNames))]
	return listedPayment{
		ID: "pay_" + drawID(random, 24), Status: statuses[random.IntN(len(statuses))], Amount: 100 + random.IntN(50_000),
		Currency: "EUR", Reference: fmt.Sprintf("ORD-2024-%06d", random.IntN(1_000_000)),
		Customer: listedCustomer{
			ID: "cus_" + drawID(random, 14), Name: first + " " + last,
			Email: strings.ToLower(first+"."+last) + "@" + mailHosts[random.IntN(len(mailHosts))],
		},
		Created: created, Livemode: true,
	}
}

// drawID draws letters and digits, as providers do for what they name.
func drawID(random *rand.Rand, size int) string {
	const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	id := make([]byte, size)
	for i := range id {
		id[i] = letters[random.IntN(len(letters))]
	}
	return string(id)
}
