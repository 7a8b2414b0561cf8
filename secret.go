package onceward

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"sync"
)

// minSecretLength is the least that keeps a keyed hash from being guessed.
const minSecretLength = 16

// secretKey is one server secret. Its id is stored with each fingerprint, so that after a rotation a retry is still
// compared under the secret of its first attempt.
type secretKey struct {
	id   uint32
	macs *sync.Pool
}

// newSecretKey derives the id from the secret itself, so that secrets need no numbers. No id is zero, which stands for none.
func newSecretKey(secret []byte) (secretKey, error) {
	if len(secret) < minSecretLength {
		return secretKey{}, fmt.Errorf("onceward: a secret of %d bytes is too short: it needs %d random bytes at least", len(secret), minSecretLength)
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
