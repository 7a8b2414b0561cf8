package mysql_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/outbox"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/mysql"
)

// TestHostileCharacterSet: where a character may end in a backslash, what the driver escapes is not: a value would end
// its quotes, and what follows would be run. Such a connection is refused.
func TestHostileCharacterSet(t *testing.T) {
	t.Parallel()
	url := mariadb(t)
	for _, parameter := range []string{"charset=gbk", "character_set_client=sjis", "charset=big5", "collation=cp932_bin"} {
		s, err := mysql.Open(t.Context(), url+"?"+parameter, quiet)
		if err != nil {
			if !strings.Contains(err.Error(), "charset=utf8mb4") {
				t.Errorf("%s was refused without a word on what to do: %v", parameter, err)
			}
			continue
		}
		t.Errorf("H8: %s: a store was opened", parameter)
		const hostile = "\xbf'; DROP TABLE onceward_meta; -- "
		_, err = s.Complete(t.Context(), own(t, s, reservation(parameter)), answer(hostile))
		rec, getErr := s.Get(t.Context(), idOf(parameter))
		if string(rec.Response.Body) != hostile {
			t.Errorf("%s: an answer was stored as %q (%v, %v)", parameter, rec.Response.Body, err, getErr)
		}
		must(t, s.Close())
	}
}

// TestOtherCharacterSet: what a message is about is stored as it is, whatever the sessions of handlers speak.
func TestOtherCharacterSet(t *testing.T) {
	t.Parallel()
	s := openStore(t, mariadb(t)+"?charset=latin1")
	const about = "größe ž 日本 🙂"
	entry := func(id string) *outbox.Entry {
		return &outbox.Entry{
			ID: id, Origin: idOf("key"),
			Message: outbox.Message{Topic: "orders", AggregateType: about, AggregateID: about, Type: about},
		}
	}
	transacted(t, s, "key", func(ctx context.Context, v store.Verdict) store.Settlement {
		must(t, s.AddMessage(ctx, txOf(ctx), entry("00000000-0000-7000-8000-000000000001")))
		must(t, s.AddToAnswer(ctx, entry("00000000-0000-7000-8000-000000000002")))
		return settled(store.TxCommit, about)
	}, store.DecisionExecute, "E1")
	claimed, err := s.ClaimMessages(t.Context(), []outbox.ClaimRequest{{Topic: "orders", Limit: 10}}, time.Minute)
	must(t, err)
	if len(claimed) == 0 {
		t.Error("I10: no message was claimed")
	}
	for _, m := range claimed {
		if m.AggregateType != about || m.AggregateID != about || m.Type != about {
			t.Errorf("I10: a message is about %q, %q and %q", m.AggregateType, m.AggregateID, m.Type)
		}
	}
}
