package rpc

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/onceward/onceward/internal/await"
	"github.com/onceward/onceward/internal/rpc/paymentpb"
)

func canonical(m proto.Message) []byte { return appendMessage(nil, m.ProtoReflect(), 0) }

// full is a payment with every kind of field.
func full() *paymentpb.Payment {
	return &paymentpb.Payment{
		Account: "a", Amount: -7, Memo: "for \u00fc", RequestId: "id",
		Labels: map[string]string{"b": "2", "a": "1", "": "empty", "c": ""},
		Shares: []int32{3, -1, 0},
		Parent: &paymentpb.Payment{Account: "parent", Parts: []*paymentpb.Payment{{}, {Amount: 1}}},
		Parts:  []*paymentpb.Payment{{Memo: "x"}, {Source: &paymentpb.Payment_Card{Card: "4711"}}},
		Source: &paymentpb.Payment_Token{Token: []byte{0, 0xff}}, Capture: proto.Bool(false), Rate: math.Copysign(0, -1),
	}
}

// TestCanonicalIsTheMessage: the form contains the whole message, and nothing else.
func TestCanonicalIsTheMessage(t *testing.T) {
	t.Parallel()
	again := new(paymentpb.Payment)
	if err := proto.Unmarshal(canonical(full()), again); err != nil || !proto.Equal(again, full()) {
		t.Errorf("got %v, error %v, want %v", again, err, full())
	}
	for what, change := range map[string]func(p *paymentpb.Payment){
		"a label":       func(p *paymentpb.Payment) { p.Labels["c"] = "3" },
		"an order":      func(p *paymentpb.Payment) { p.Shares = []int32{-1, 3, 0} },
		"a part":        func(p *paymentpb.Payment) { p.Parts[0].Memo = "y" },
		"a presence":    func(p *paymentpb.Payment) { p.Capture = nil },
		"a oneof":       func(p *paymentpb.Payment) { p.Source = &paymentpb.Payment_Card{Card: "\x00\xff"} },
		"a zero's sign": func(p *paymentpb.Payment) { p.Rate = 0 },
	} {
		other := full()
		if change(other); bytes.Equal(canonical(other), canonical(full())) {
			t.Errorf("another %s is not noticed", what)
		}
	}
}

// TestCanonicalOfMaps: the order of a map is random, and has no meaning.
func TestCanonicalOfMaps(t *testing.T) {
	t.Parallel()
	for range 50 {
		if !bytes.Equal(canonical(full()), canonical(full())) {
			t.Fatal("one message has two forms")
		}
	}
}

// TestCanonicalOfUnknownFields: while a deploy is under way, a node that does not know a new field yet and one that
// does see the same request.
func TestCanonicalOfUnknownFields(t *testing.T) {
	t.Parallel()
	sent := full()
	sent.Labels = map[string]string{"one": "entry"} // which a client may send in one order only
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	want := canonical(sent)
	for _, missing := range []protoreflect.Name{
		"account", "amount", "labels", "shares", "parent", "parts", "token", "rate",
	} {
		old := dynamicpb.NewMessage(without(t, missing))
		if err := proto.Unmarshal(wire, old); err != nil {
			t.Fatal(err)
		}
		if got := canonical(old); !bytes.Equal(got, want) {
			t.Errorf("without %s:\ngot  %x\nwant %x", missing, got, want)
		}
	}
	// In the other order on the wire, as fields may be.
	shuffled := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 7)
	shuffled = protowire.AppendString(protowire.AppendTag(shuffled, 1, protowire.BytesType), "a")
	old := dynamicpb.NewMessage(without(t, "amount"))
	if err := proto.Unmarshal(shuffled, old); err != nil {
		t.Fatal(err)
	}
	if got, want := canonical(old), canonical(&paymentpb.Payment{Account: "a", Amount: 7}); !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

// without is the schema of a payment before a field was added.
func without(t *testing.T, name protoreflect.Name) protoreflect.MessageDescriptor {
	t.Helper()
	file := protodesc.ToFileDescriptorProto(paymentpb.File_payment_proto)
	message := file.GetMessageType()[0]
	var kept []*descriptorpb.FieldDescriptorProto
	for _, field := range message.GetField() {
		if field.GetName() != string(name) {
			kept = append(kept, field)
		}
	}
	if len(kept) != len(message.GetField())-1 {
		t.Fatalf("there is no %s", name)
	}
	message.Field = kept
	if name == "labels" { // its entries go along
		message.NestedType = nil
	}
	old, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return old.Messages().ByName("Payment")
}

// TestCanonicalWithoutID: the id of a request is not part of its content, but the id of a part is.
func TestCanonicalWithoutID(t *testing.T) {
	t.Parallel()
	const number = 4
	one, two := full(), full()
	two.RequestId = "another"
	strip := func(p *paymentpb.Payment) []byte { return appendMessage(nil, p.ProtoReflect(), number) }
	if !bytes.Equal(strip(one), strip(two)) {
		t.Error("the id counts")
	}
	if two.Parts[0].RequestId = "of a part"; bytes.Equal(strip(one), strip(two)) {
		t.Error("what a part says does not count")
	}
}

// TestCanonicalOfDepth: the time grows with the size, however deep a message is nested: a caller chooses both. Writing
// each level again would take a thousand times as long as a flat message, in every try.
func TestCanonicalOfDepth(t *testing.T) {
	t.Parallel()
	const depth = 3000
	memo := strings.Repeat("x", 4<<20)
	flat := &paymentpb.Payment{Memo: memo}
	deep, value := flat, structpb.NewStringValue(memo)
	for range depth {
		deep = &paymentpb.Payment{Parent: deep}
		value = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"a": value}})
	}
	took := func(m proto.Message) time.Duration {
		began := time.Now()
		canonical(m)
		return time.Since(began)
	}
	for _, m := range []proto.Message{deep, value} {
		want, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(canonical(m), want) {
			t.Errorf("%T: a message of one field is not its wire format", m)
		}
		await.That(t, fmt.Sprintf("a deep %T takes about as long as a flat one", m), func() bool { return took(m) < 50*took(flat) })
	}
}
