package onceward

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"sync"
)

// minSecretLength is the length of the shortest secret that prevents guessing a keyed hash, in bytes.
const minSecretLength = 16

// secretKey is one server secret. Its id is stored with each fingerprint, so that after a rotation a retry is still
// compared under the secret of its first attempt.
type secretKey struct {
	id   uint32
	macs *sync.Pool
}

// newSecretKey derives the id from the secret itself, so that secrets need no numbers. No id is zero, because zero
// means none.
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

// newSecretKeys returns the secrets with their ids, the current secret first.
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

// sum computes the keyed hash of message into dst, if dst has room for it.
func (k *secretKey) sum(dst, message []byte) []byte {
	mac := k.macs.Get().(hash.Hash)
	mac.Reset()
	mac.Write(message)
	sum := mac.Sum(dst[:0])
	k.macs.Put(mac)
	return sum
}

// WarnSharedProvider reports a sign that another service uses the same account at a provider. If this guard has no
// [Config].Namespace, a warning is logged, once: two services with equal scopes, keys and secrets send equal downstream
// keys, and the second service gets the effect of the first. A poller and a ledger comparer call it if they find such a
// sign. A resolver may call it if it finds an effect that does not belong to its service.
func (g *Guard) WarnSharedProvider(ctx context.Context, sign string, attrs ...any) {
	if g.config.Namespace != "" {
		return
	}
	g.shared.Do(func() {
		g.config.Logger.WarnContext(ctx, "onceward: another service, or another stage of this one, seems to use the same "+
			"account at a provider, and Config.Namespace is empty: where scopes, keys and secrets are equal, so are "+
			"downstream keys, and the second service gets the effect of the first; give each a namespace of its own "+
			"(docs/unknown-outcomes.md, Two services at one provider)", append([]any{"sign", sign}, attrs...)...)
	})
}
