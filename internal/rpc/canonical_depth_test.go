//go:build unix

package rpc

import (
	"bytes"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/onceward/onceward/internal/rpc/paymentpb"
)

// TestCanonicalOfDepth: the time grows with the size, however deep a message is nested: a caller chooses both. It is the
// processor's time that is compared, of a process that does nothing else, so that a busy machine changes nothing.
func TestCanonicalOfDepth(t *testing.T) {
	const depth = 3000
	deep := &paymentpb.Payment{Memo: strings.Repeat("x", 4<<20)}
	value := structpb.NewStringValue(deep.Memo)
	for range depth {
		deep = &paymentpb.Payment{Parent: deep}
		value = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"a": value}})
	}
	for _, m := range []proto.Message{deep, value} {
		began := processorTime(t)
		want, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		usual := processorTime(t) - began
		began = processorTime(t)
		if !bytes.Equal(canonical(m), want) {
			t.Errorf("%T: a message of one field is not its wire format", m)
		}
		if took := processorTime(t) - began; took > time.Second+20*usual {
			t.Errorf("%T: it took %s, and to encode it %s", m, took, usual)
		}
	}
}

// processorTime returns how long this process has kept processors busy.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
