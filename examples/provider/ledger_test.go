package provider

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"reflect"
	"testing"

	"github.com/onceward/onceward/internal/proc"
	"github.com/onceward/onceward/internal/proc/proctest"
)

// childConfig names the variable that makes the test binary a provider of its own process instead of running tests.
const childConfig = "PROVIDER_TEST_CONFIG"

func TestMain(m *testing.M) {
	text, child := os.LookupEnv(childConfig)
	if !child {
		os.Exit(m.Run())
	}
	var config Config
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		panic(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	os.Stdout.WriteString("http://" + listener.Addr().String() + "\n")
	panic(Serve(context.Background(), config, listener))
}

// spawn runs a provider in a process of its own, and returns a way to kill it that it cannot notice.
func spawn(t *testing.T, config Config) (client *Client, kill func() error) {
	t.Helper()
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	p := proctest.Start(t, proc.Self(childConfig, string(text)))
	return newClient(t, p.Hear("http://")), p.Kill
}

func TestLedgerSurvivesAKill(t *testing.T) {
	t.Parallel()
	config := Config{LedgerPath: ledgerPath(t), Dedup: true}
	client, kill := spawn(t, config)
	charge := mustCharge(t, client, "k", order("r"))
	refund, err := client.Refund(bounded(t), "k", RefundRequest{Charge: charge.ID, Amount: 4000})
	if err != nil {
		t.Fatal(err)
	}
	decline := order("d")
	decline.Amount = DeclinedAmount
	if _, err := client.Charge(bounded(t), "d", decline); outcome(err) != "declined" {
		t.Fatal(err)
	}
	if err := client.SetFaults(bounded(t), Faults{Rules: []Rule{{Kind: HoldAfter, Name: "in flight"}}}); err != nil {
		t.Fatal(err)
	}
	lost := make(chan error, 1)
	go func() {
		_, err := client.Charge(bounded(t), "lost", order("lost"))
		lost <- err
	}()
	if err := client.Await(bounded(t), "in flight", 1); err != nil {
		t.Fatal(err)
	}
	if err := kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-lost; outcome(err) != "unknown" {
		t.Errorf("a charge whose provider was killed: %s, want unknown", outcome(err))
	}

	client, _ = spawn(t, config)
	if again := mustCharge(t, client, "k", order("r")); !reflect.DeepEqual(again, charge) {
		t.Errorf("after the kill %+v, want %+v", again, charge)
	}
	if again, err := client.Refund(bounded(t), "k", refund.RefundRequest); err != nil || !reflect.DeepEqual(again, refund) {
		t.Errorf("after the kill %+v, %v; want %+v", again, err, refund)
	}
	if _, err := client.Refund(bounded(t), "k2", refund.RefundRequest); outcome(err) != "refused refund_too_large" {
		t.Errorf("the money is given back twice: %v", err)
	}
	if _, err := client.Charge(bounded(t), "d", decline); outcome(err) != "declined" {
		t.Errorf("the decline is forgotten: %v", err)
	}
	if found, ok, err := client.Find(bounded(t), "lost"); err != nil || !ok || found.ID != "ch_000000000003" {
		t.Errorf("the charge whose answer was lost: %+v, %v, %v", found, ok, err)
	}
	if next := mustCharge(t, client, "n", order("n")); next.ID != "ch_000000000004" {
		t.Errorf("the id after the kill is %s", next.ID)
	}
	ledger, err := ReadLedger(config.LedgerPath)
	if err != nil || len(ledger) != 4 || len(ledger.Charges("r")) != 1 || len(ledger.Charges("lost")) != 1 {
		t.Errorf("ledger %+v, %v; want three charges and a refund", ledger, err)
	}
}

func TestTornLineNeverHappened(t *testing.T) {
	t.Parallel()
	config := Config{LedgerPath: ledgerPath(t), Dedup: true}
	server, client := start(t, config)
	first := mustCharge(t, client, "k1", order("r1"))
	mustCharge(t, client, "k2", order("r2"))
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(config.LedgerPath)
	if err != nil {
		t.Fatal(err)
	}
	// Only the end of the line is missing, so what is left would still be good JSON.
	if err := os.WriteFile(config.LedgerPath, data[:len(data)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	if ledger, err := ReadLedger(config.LedgerPath); err != nil || len(ledger) != 1 {
		t.Errorf("read %d effects, %v; want 1", len(ledger), err)
	}

	server, client = start(t, config)
	if _, ok, err := client.Find(bounded(t), "k2"); ok || err != nil {
		t.Errorf("the torn charge is found: %v, %v", ok, err)
	}
	if again := mustCharge(t, client, "k1", order("r1")); again.ID != first.ID {
		t.Errorf("the whole charge is now %s, was %s", again.ID, first.ID)
	}
	mustCharge(t, client, "k3", order("r3"))
	ledger, err := ReadLedger(config.LedgerPath)
	if err != nil || !reflect.DeepEqual(ledger, server.Ledger()) || len(ledger) != 2 {
		t.Errorf("the file has %+v, %v; the provider %+v", ledger, err, server.Ledger())
	}
}

func TestDamagedLedgerIsNotOpened(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"no JSON":      "{\"type\":\"cha\n",
		"no content":   "{\"type\":\"charge\"}\n",
		"unknown type": "{\"type\":\"transfer\",\"charge\":{}}\n",
	} {
		path := ledgerPath(t)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if p, err := New(Config{LedgerPath: path}); err == nil {
			p.Close()
			t.Errorf("%s: opened", name)
		}
		if _, err := ReadLedger(path); err == nil {
			t.Errorf("%s: read", name)
		}
	}
}

func TestBrokenLedgerStopsCharges(t *testing.T) {
	t.Parallel()
	provider, err := New(Config{LedgerPath: ledgerPath(t), Dedup: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { provider.Close() })
	provider.book.file.file.Close()
	for range 2 {
		if _, _, err := provider.book.charge("k", order("r")); err == nil {
			t.Fatal("a charge that could not be written down was made")
		}
	}
	if page := provider.book.list(query{limit: 10}); len(page.Data) != 0 {
		t.Errorf("a charge that could not be written down is known: %+v", page)
	}
}
