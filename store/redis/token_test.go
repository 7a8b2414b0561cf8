package redis_test

import (
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/onceward/onceward/internal/servers"
	"github.com/onceward/onceward/store"
	"github.com/onceward/onceward/store/redis"
)

// TestTokensAreDrawn: two owners of one key get different tokens (S7), also if the first one's grant was lost in a
// fail-over to a replica whose clock reads the same, or is behind the tokens that are stored.
func TestTokensAreDrawn(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	prefix := server.Prefix(t)
	ahead, s := open(t, server.URL(), redis.WithPrefix(prefix)), open(t, server.URL(), redis.WithPrefix(prefix))
	redis.NewTestClock(t, ahead).Advance(time.Hour)
	must(t, ahead.Release(t.Context(), booked(t, ahead, "k"), "no stock"))

	options, err := rueidis.ParseURL(server.URL())
	must(t, err)
	client, err := rueidis.NewClient(options)
	must(t, err)
	defer client.Close()
	keys, err := client.Do(t.Context(), client.B().Keys().Pattern(prefix+":*").Build()).AsStrSlice()
	must(t, err)
	dumps := make(map[string]string)
	for _, key := range keys {
		dumps[key], err = client.Do(t.Context(), client.B().Dump().Key(key).Build()).ToString()
		must(t, err)
	}
	first := booked(t, s, "k")
	for key, dump := range dumps {
		restore := client.B().Restore().Key(key).Ttl(0).SerializedValue(dump).Replace().Build()
		must(t, client.Do(t.Context(), restore).Error())
	}
	if second := booked(t, s, "k"); first.Attempt == second.Attempt {
		t.Errorf("S7: two owners above a token that is ahead of the clock got %d", first.Attempt)
	}

	drawn := false
	for _, key := range []string{"1", "2", "3", "4"} {
		v, err := s.Reserve(t.Context(), booking(key))
		must(t, err)
		if v.Decision != store.DecisionExecute || v.Record.Attempt != look(t, s, key).Attempt {
			t.Errorf("the token of the grant and of the record differ: %+v", v)
		}
		drawn = drawn || v.Record.Attempt != v.Now.UnixMicro()
	}
	if !drawn {
		t.Error("S7: the tokens of new records are the clock's readings")
	}
}
