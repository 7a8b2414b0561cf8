package onceward

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/onceward/onceward/store"
)

// This file derives the idempotency keys that are sent to other systems. A holder of the secret can decode a key: it
// contains the hash of the operation's ID, by which a store finds the record. A key is
//
//	base32(AES_k(hash) ‖ tag)    tag = HMAC(secret, step)    k = HMAC(secret, tag)
//
// in 44 small letters and digits, because some providers accept at most 45 characters, and others may not distinguish
// upper and lower case. The tag has 88 bits, so that any number of steps of one operation have different keys, and each
// step has its own cipher: a receiver of two steps of an operation cannot see that they belong together.

// These labels separate what is derived: a value derived for one purpose never equals a value derived for another. The
// labels and the encoding after them never change: a provider must see the same key on every retry
// (testdata/downstream-keys.json).
const (
	labelDownstreamSecret = "onceward downstream secret 2\x00"
	labelStepTag          = "onceward downstream step 2\x00"
	labelStepCipher       = "onceward downstream cipher 2\x00"
	labelFollowingKey     = "onceward following key 1\x00"
)

const (
	// stepTagSize is how many bytes of a key identify its step.
	stepTagSize = 11
	// followingKeySize is how many bytes of a keyed hash a following key contains, as hexadecimal digits.
	followingKeySize = 20
)

// keyEncoding is the text encoding of keys.
var keyEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// downstreamSecret derives the downstream keys of the records that name it.
type downstreamSecret struct{ secretKey }

// downstreamRing derives downstream keys, with the secret that a record names or with the current secret, which is the
// first.
type downstreamRing struct{ secrets []downstreamSecret }

// newDownstreamRing derives a secret from each configured secret and the namespace. So the secret's id in a record
// identifies both: after a change of the namespace, the keys of older records cannot be derived, which is better than
// deriving different keys.
func newDownstreamRing(c *Config) (ring downstreamRing, err error) {
	configured := slices.Concat([][]byte{c.Secret}, c.OldSecrets, c.OldDownstreamSecrets)
	if len(c.DownstreamSecret) > 0 {
		configured = slices.Insert(configured, 0, c.DownstreamSecret)
	}
	derived, err := deriveSecrets(configured, c.Namespace)
	for _, secret := range derived {
		ring.secrets = append(ring.secrets, downstreamSecret{secret})
	}
	return ring, err
}

// deriveSecrets derives a secret from each configured secret.
func deriveSecrets(configured [][]byte, namespace string) ([]secretKey, error) {
	message := appendField([]byte(labelDownstreamSecret), namespace)
	derived := make([][]byte, 0, len(configured))
	for _, secret := range configured {
		from, err := newSecretKey(secret)
		if err != nil {
			return nil, err
		}
		derived = append(derived, from.sum(nil, message))
	}
	return newSecretKeys(derived)
}

// current returns the id of the secret that new records keep.
func (d *downstreamRing) current() uint32 { return d.secrets[0].id }

// secret returns the secret of a record. If the secret is not configured, no other secret can replace it: to a
// provider, another key is another operation.
func (d *downstreamRing) secret(rec *store.Record) (*downstreamSecret, error) {
	for i := range d.secrets {
		if d.secrets[i].id == rec.DownstreamSecret {
			return &d.secrets[i], nil
		}
	}
	return nil, &store.UnreadableError{Version: rec.Version, Reason: fmt.Sprintf("its downstream keys are derived "+
		"with secret %d, which is not configured: put the secret back, into OldDownstreamSecrets or OldSecrets, "+
		"and the Namespace as it was", rec.DownstreamSecret)}
}

// key derives the key of a step of an operation.
func (d *downstreamSecret) key(id store.ID, step string) string {
	tag := d.tag(step)
	var b [aes.BlockSize + stepTagSize]byte
	hash := id.HashBytes()
	d.cipher(tag).Encrypt(b[:], hash[:])
	copy(b[aes.BlockSize:], tag)
	return keyEncoding.EncodeToString(b[:])
}

// tag returns the part of a key that identifies its step.
func (d *downstreamSecret) tag(step string) []byte {
	return d.sum(nil, appendField([]byte(labelStepTag), step))[:stepTagSize]
}

// cipher returns the cipher of the steps with a tag.
func (d *downstreamSecret) cipher(tag []byte) cipher.Block {
	block, err := aes.NewCipher(d.sum(nil, append([]byte(labelStepCipher), tag...))[:aes.BlockSize])
	if err != nil {
		panic(err) // the size of the key is right
	}
	return block
}

// DownstreamKey derives the key of [Operation.DownstreamKey] outside the handler, for example in a resolver that asks
// another system about the outcome. The error wraps [ErrUnreadable] if the record's secret is no longer configured.
func (g *Guard) DownstreamKey(rec *store.Record, step string) (string, error) {
	secret, err := g.downstream.secret(rec)
	if err != nil {
		return "", err
	}
	return secret.key(rec.ID, step), nil
}

// OpenedKey is a decoded downstream key.
type OpenedKey struct {
	// Hash is the hash of the operation's ID, as [store.ID.Hash] writes it.
	Hash string
	// Secret is the id of the secret. A record with another DownstreamSecret did not send the key.
	Secret uint32

	secret *downstreamSecret
	tag    []byte
}

// IsOf reports whether the key belongs to a step of that name.
func (k *OpenedKey) IsOf(step string) bool { return slices.Equal(k.tag, k.secret.tag(step)) }

// OpenDownstreamKey decodes a downstream key, so that a person who got the key from the other system can find the
// record with a [store.Finder]. It returns one answer for each configured secret, because the key does not show which
// secret it was derived with: at most one answer leads to a record. It returns none for a text that is not a downstream
// key.
func (g *Guard) OpenDownstreamKey(key string) (opened []OpenedKey) {
	b, err := keyEncoding.DecodeString(key)
	if err != nil || len(b) != aes.BlockSize+stepTagSize || keyEncoding.EncodeToString(b) != key {
		return nil
	}
	for i := range g.downstream.secrets {
		secret := &g.downstream.secrets[i]
		var hash [aes.BlockSize]byte
		tag := b[aes.BlockSize:]
		secret.cipher(tag).Decrypt(hash[:], b[:aes.BlockSize])
		opened = append(opened, OpenedKey{
			Hash: hex.EncodeToString(hash[:]), Secret: secret.id, secret: secret, tag: tag,
		})
	}
	return opened
}

// FollowingKey derives the downstream key of an effect that follows another effect sent with the given key, such as a
// message that is added when another message was delivered. Knowing the first key is not enough to compute it.
func (g *Guard) FollowingKey(key, step string) string {
	message := appendField([]byte(labelFollowingKey), key)
	return hex.EncodeToString(g.downstream.secrets[0].sum(nil, appendField(message, step))[:followingKeySize])
}
