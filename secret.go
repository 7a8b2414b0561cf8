package onceward

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"slices"
	"sync"

	"github.com/onceward/onceward/store"
)

// minSecretLength is the least that keeps a keyed hash from being guessed.
const minSecretLength = 16

// secretKey is one server secret. Its id is stored with each fingerprint, so that after a rotation a retry is still
// compared under the secret of its first attempt.
type secretKey struct {
	id   uint32
	macs *sync.Pool
}

// newSecretKey derives the id from the secret itself, so that secrets need no numbers. No id is zero, which stands for
// none.
func newSecretKey(secret []byte) (secretKey, error) {
	if len(secret) < minSecretLength {
		return secretKey{}, fmt.Errorf("onceward: a secret of %d bytes is too short: it needs %d random bytes at least",
			len(secret), minSecretLength)
	}
	kept := append([]byte(nil), secret...)
	sum := sha256.Sum256(append([]byte("onceward secret id\x00"), kept...))
	return secretKey{
		id:   max(binary.BigEndian.Uint32(sum[:4]), 1),
		macs: &sync.Pool{New: func() any { return hmac.New(sha256.New, kept) }},
	}, nil
}

// newSecretKeys makes the ring: the current secret first.
func newSecretKeys(secrets [][]byte) ([]secretKey, error) {
	keys := make([]secretKey, 0, len(secrets))
	for _, secret := range secrets {
		key, err := newSecretKey(secret)
		if err != nil {
			return nil, err
		}
		for _, other := range keys {
			if other.id == key.id {
				return nil, errors.New("onceward: the same secret is configured twice")
			}
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// sum computes the keyed hash of message into dst, if that has room for it.
func (k *secretKey) sum(dst, message []byte) []byte {
	mac := k.macs.Get().(hash.Hash)
	mac.Reset()
	mac.Write(message)
	sum := mac.Sum(dst[:0])
	k.macs.Put(mac)
	return sum
}

// The labels of what is derived: what was derived for one purpose never equals what was derived for another. They never
// change, nor does what follows them: a provider that has seen a key must see the same one again
// (testdata/downstream-keys.json).
const (
	labelDownstreamSecret = "onceward downstream secret 1\x00"
	labelDownstreamKey    = "onceward downstream key 1\x00"
	labelFollowingKey     = "onceward following key 1\x00"
)

// downstreamKeyLength is how many bytes of a keyed hash a downstream key shows, in hexadecimal digits.
const downstreamKeyLength = 20

// downstreamRing derives downstream keys: with the secret that a record names, or with the current one, which is the
// first.
type downstreamRing []secretKey

// newDownstreamRing derives a secret from each of those that are configured and from the namespace. So the id that a
// record keeps stands for both: after a change of the namespace its keys cannot be derived, which is better than
// deriving others.
func newDownstreamRing(c *Config) (downstreamRing, error) {
	configured := slices.Concat([][]byte{c.Secret}, c.OldSecrets, c.OldDownstreamSecrets)
	if len(c.DownstreamSecret) > 0 {
		configured = slices.Insert(configured, 0, c.DownstreamSecret)
	}
	label := appendField([]byte(labelDownstreamSecret), c.Namespace)
	derived := make([][]byte, 0, len(configured))
	for _, secret := range configured {
		from, err := newSecretKey(secret)
		if err != nil {
			return nil, err
		}
		derived = append(derived, from.sum(nil, label))
	}
	return newSecretKeys(derived)
}

// current is the id of the secret that new records keep.
func (d downstreamRing) current() uint32 { return d[0].id }

// secret finds the secret of a record. Without it no key is made up: another one would be another operation to a
// provider.
func (d downstreamRing) secret(rec *store.Record) (*secretKey, error) {
	for i := range d {
		if d[i].id == rec.DownstreamSecret {
			return &d[i], nil
		}
	}
	return nil, &store.UnreadableError{Version: rec.Version, Reason: fmt.Sprintf("its downstream keys are derived "+
		"with secret %d, which is not configured: put the secret back, into OldDownstreamSecrets or OldSecrets, "+
		"and the Namespace as it was", rec.DownstreamSecret)}
}

// downstreamKey derives the key of a step of an operation.
func (k *secretKey) downstreamKey(id store.ID, step string) string {
	message := appendField([]byte(labelDownstreamKey), id.Scope)
	message = appendField(message, id.Key)
	return k.hex(appendField(message, step))
}

func (k *secretKey) hex(message []byte) string {
	return hex.EncodeToString(k.sum(nil, message)[:downstreamKeyLength])
}

// DownstreamKey is [Operation.DownstreamKey] for those who have the record but are not in its handler, such as a
// resolver that asks another system what became of it. The error wraps [ErrUnreadable]: the record's secret is not
// configured any more.
func (g *Guard) DownstreamKey(rec *store.Record, step string) (string, error) {
	secret, err := g.downstream.secret(rec)
	if err != nil {
		return "", err
	}
	return secret.downstreamKey(rec.ID, step), nil
}

// WarnSharedProvider says that another service seems to use the same account at a provider, and by which sign. If this
// guard has no [Config].Namespace, that is logged as a warning, once: two services with equal scopes, keys and secrets
// send equal downstream keys, and the second one is given the first one's effect. A poller and a ledger comparer call it
// where they see such a sign; so may a resolver that finds an effect which is none of its service's own.
func (g *Guard) WarnSharedProvider(ctx context.Context, sign string, attrs ...any) {
	if g.config.Namespace != "" {
		return
	}
	g.shared.Do(func() {
		g.config.Logger.WarnContext(ctx, "onceward: another service, or another stage of this one, seems to use the same "+
			"account at a provider, and Config.Namespace is empty: where scopes, keys and secrets are equal, so are "+
			"downstream keys, and the second one is given the effect of the first; give each a namespace of its own "+
			"(docs/unknown-outcomes.md, Two services at one provider)", append([]any{"sign", sign}, attrs...)...)
	})
}

// FollowingKey derives the downstream key of an effect that follows another one, which was sent with that key, such as
// a message that is added when another one was delivered. Those who know the first key cannot compute it.
func (g *Guard) FollowingKey(key, step string) string {
	message := appendField([]byte(labelFollowingKey), key)
	return g.downstream[0].hex(appendField(message, step))
}
