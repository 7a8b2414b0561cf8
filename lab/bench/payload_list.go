package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

// listedPayment is a payment as providers show it: what was asked for, what became of it, who pays and with what.
type listedPayment struct {
	leanPayment
	Object         string        `json:"object"`
	AmountCaptured int           `json:"amount_captured"`
	AmountRefunded int           `json:"amount_refunded"`
	Description    string        `json:"description"`
	PaymentMethod  paymentMethod `json:"payment_method"`
	FailureCode    *string       `json:"failure_code"`
	StatementName  string        `json:"statement_descriptor"`
}

// leanPayment has little but ids and numbers, of which no two payments share any.
type leanPayment struct {
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

type paymentMethod struct {
	Type     string `json:"type"`
	Brand    string `json:"brand"`
	Last4    string `json:"last4"`
	ExpMonth int    `json:"exp_month"`
	ExpYear  int    `json:"exp_year"`
	Country  string `json:"country"`
}

// What customers are called, and what becomes of payments.
var (
	firstNames = strings.Fields(`Ada Bruno Chiara Dmitri Elif Farid Greta Hugo Ines Jonas Karim Lena Marek Noor Olga Pedro
		Quentin Rosa Sven Tomas Uma Viktor Wanda Ximena Yusuf Zoë`)
	lastNames = strings.Fields(`Almeida Brontë Castro Dubois Eriksen Fischer García Horvat Ivanova Jansen Kowalski
		Lindqvist Moreau Novák Okafor Petrov Quispe Rossi Schmidt Tanaka Ünal Vargas Weber Xu Yilmaz Zimmermann`)
	mailHosts = []string{"example.com", "example.org", "mail.example.net"}
	statuses  = []string{"succeeded", "succeeded", "succeeded", "refunded", "failed"}
	brands    = []string{"visa", "mastercard", "amex"}
	countries = []string{"DE", "ES", "FR", "GB", "IT", "PL"}
	failures  = []string{"card_declined", "expired_card", "insufficient_funds"}
)

// listSize is how long an answer with a list may be.
const listSize = 4096

// listAnswer and leanAnswer are pages of payments, as many as fit into 4 KiB. They are the same in each run.
var (
	listAnswer = sync.OnceValue(func() []byte { return drawPage(drawPayment) })
	leanAnswer = sync.OnceValue(func() []byte { return drawPage(drawLean) })
)

func drawPage[T any](draw func(*rand.Rand, time.Time) T) (page []byte) {
	random := rand.New(rand.NewPCG(1, 2))
	created := time.Date(2024, 5, 2, 10, 11, 12, 0, time.UTC)
	for list := []T(nil); ; {
		created = created.Add(time.Duration(random.IntN(7200)) * time.Second)
		list = append(list, draw(random, created))
		longer, _ := json.Marshal(map[string]any{"data": list, "has_more": true}) // it cannot fail for these types
		if len(longer) > listSize {
			return page
		}
		page = longer
	}
}

func drawPayment(random *rand.Rand, created time.Time) listedPayment {
	lean := drawLean(random, created)
	p := listedPayment{
		leanPayment: lean, Object: "payment", AmountCaptured: lean.Amount, StatementName: "EXAMPLE SHOP",
		Description: "Order " + lean.Reference + " of " + lean.Customer.Name,
		PaymentMethod: paymentMethod{
			Type: "card", Brand: brands[random.IntN(len(brands))], Last4: fmt.Sprintf("%04d", random.IntN(10_000)),
			ExpMonth: 1 + random.IntN(12), ExpYear: 2025 + random.IntN(5), Country: countries[random.IntN(len(countries))],
		},
	}
	switch lean.Status {
	case "refunded":
		p.AmountRefunded = lean.Amount
	case "failed":
		code := failures[random.IntN(len(failures))]
		p.AmountCaptured, p.FailureCode = 0, &code
	}
	return p
}

func drawLean(random *rand.Rand, created time.Time) leanPayment {
	first, last := firstNames[random.IntN(len(firstNames))], lastNames[random.IntN(len(lastNames))]
	return leanPayment{
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
