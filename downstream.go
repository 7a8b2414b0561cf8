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

// This file derives the idempotency keys that are sent to other systems. There are two derivations, and a record keeps,
// with the id of its secret, which one is its own. The first is a keyed hash. The second can be opened by those who
// have the secret: it shows the hash of the operation's ID, by which a store finds the record. It is
//
//	base32(AES_k(hash) ‖ tag)    tag = HMAC(secret, step)    k = HMAC(secret, tag)
//
// in 44 small letters and digits, because a provider takes no more than 45 characters, and another one may not tell
// letters of different cases apart. The tag has 88 bits, so that any number of steps of one operation have keys of
// their own, and each has a cipher of its own: a receiver of two steps of an operation cannot tell that they belong
// together.

// The labels of what is derived: what was derived for one purpose never equals what was derived for another. They never
// change, nor does what follows them: a provider that has seen a key must see the same one again
// (testdata/downstream-keys.json).
const (
	labelDownstreamSecret = "onceward downstream secret 1\x00"
	labelDownstreamKey    = "onceward downstream key 1\x00"
	labelFollowingKey     = "onceward following key 1\x00"
	labelOpenableSecret   = "onceward downstream secret 2\x00"
	labelStepTag          = "onceward downstream step 2\x00"
	labelStepCipher       = "onceward downstream cipher 2\x00"
)

const (
	// hashedKeySize is how many bytes of a keyed hash a key of the first derivation shows, in hexadecimal digits.
	hashedKeySize = 20
	// stepTagSize is how many bytes of a key of the second derivation tell its step.
	stepTagSize = 11
)

// openableEncoding is how keys of the second derivation are written.
var openableEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// downstreamSecret derives the downstream keys of the records that name it.
type downstreamSecret struct {
	secretKey
	// openable says that it derives in the second way.
	openable bool
}

// downstreamRing derives downstream keys: with the secret that a record names, or with the current one, which is the
// first.
type downstreamRing struct {
	secrets []downstreamSecret
	// following derives the keys of what follows.
	following secretKey
}

// newDownstreamRing derives, for each derivation, a secret from each of those that are configured and from the
// namespace. So the id that a record keeps stands for all three: after a change of the namespace its keys cannot be
// derived, which is better than deriving others, and a program that knows the first derivation alone derives none of a
// record of the second.
func newDownstreamRing(c *Config) (ring downstreamRing, err error) {
	configured := slices.Concat([][]byte{c.Secret}, c.OldSecrets, c.OldDownstreamSecrets)
	if len(c.DownstreamSecret) > 0 {
		configured = slices.Insert(configured, 0, c.DownstreamSecret)
	}
	openable, err := deriveSecrets(configured, labelOpenableSecret, c.Namespace)
	if err != nil {
		return ring, err
	}
	hashed, err := deriveSecrets(configured, labelDownstreamSecret, c.Namespace)
	if err != nil {
		return ring, err
	}
	for _, secret := range openable {
		ring.secrets = append(ring.secrets, downstreamSecret{secretKey: secret, openable: true})
	}
	for _, secret := range hashed {
		ring.secrets = append(ring.secrets, downstreamSecret{secretKey: secret})
	}
	ring.following = hashed[0]
	return ring, nil
}

// deriveSecrets derives a secret from each of those that are configured.
func deriveSecrets(configured [][]byte, label, namespace string) ([]secretKey, error) {
	message := appendField([]byte(label), namespace)
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

// current is the id of the secret that new records keep.
func (d *downstreamRing) current() uint32 { return d.secrets[0].id }

// secret finds the secret of a record. Without it no key is made up: another one would be another operation to a
// provider.
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
	if !d.openable {
		message := appendField([]byte(labelDownstreamKey), id.Scope)
		message = appendField(message, id.Key)
		return hexKey(&d.secretKey, appendField(message, step))
	}
	tag := d.tag(step)
	var b [aes.BlockSize + stepTagSize]byte
	hash := id.HashBytes()
	d.cipher(tag).Encrypt(b[:], hash[:])
	copy(b[aes.BlockSize:], tag)
	return openableEncoding.EncodeToString(b[:])
}

// tag is what a key of the second derivation shows of its step.
func (d *downstreamSecret) tag(step string) []byte {
	return d.sum(nil, appendField([]byte(labelStepTag), step))[:stepTagSize]
}

// cipher is that of the steps with a tag.
func (d *downstreamSecret) cipher(tag []byte) cipher.Block {
	block, err := aes.NewCipher(d.sum(nil, append([]byte(labelStepCipher), tag...))[:aes.BlockSize])
	if err != nil {
		panic(err) // the size of the key is right
	}
	return block
}

func hexKey(k *secretKey, message []byte) string {
	return hex.EncodeToString(k.sum(nil, message)[:hashedKeySize])
}

// DownstreamKey is [Operation.DownstreamKey] for those who have the record but are not in its handler, such as a
// resolver that asks another system what became of it. The error wraps [ErrUnreadable]: the record's secret is not
// configured any more.
func (g *Guard) DownstreamKey(rec *store.Record, step string) (string, error) {
	secret, err := g.downstream.secret(rec)
	if err != nil {
		return "", err
	}
	return secret.key(rec.ID, step), nil
}

// OpenedKey is what a downstream key says to who has the secret that it was derived with.
type OpenedKey struct {
	// Hash is the hash of the operation's ID, as [store.ID.Hash] writes it.
	Hash string
	// Secret is the id of the secret: a record whose DownstreamSecret is another one has not sent the key.
	Secret uint32

	secret *downstreamSecret
	tag    []byte
}

// IsOf reports whether it is the key of a step of that name.
func (k *OpenedKey) IsOf(step string) bool { return slices.Equal(k.tag, k.secret.tag(step)) }

// OpenDownstreamKey says of which operation a downstream key is, so that a person who has what the other system knows
// finds the record by a [store.Finder]. There is an answer for each secret that is configured, because the key does not
// tell with which of them it was derived: at most one leads to a record. There is none for a text that is no such key,
// or that is one of the first derivation, which cannot be opened: see docs/unknown-outcomes.md.
func (g *Guard) OpenDownstreamKey(key string) (opened []OpenedKey) {
	b, err := openableEncoding.DecodeString(key)
	if err != nil || len(b) != aes.BlockSize+stepTagSize || openableEncoding.EncodeToString(b) != key {
		return nil
	}
	for i := range g.downstream.secrets {
		secret := &g.downstream.secrets[i]
		if !secret.openable {
			continue
		}
		var hash [aes.BlockSize]byte
		tag := b[aes.BlockSize:]
		secret.cipher(tag).Decrypt(hash[:], b[:aes.BlockSize])
		opened = append(opened, OpenedKey{
			Hash: hex.EncodeToString(hash[:]), Secret: secret.id, secret: secret, tag: tag,
		})
	}
	return opened
}

// FollowingKey derives the downstream key of an effect that follows another one, which was sent with that key, such as
// a message that is added when another one was delivered. Those who know the first key cannot compute it.
func (g *Guard) FollowingKey(key, step string) string {
	message := appendField([]byte(labelFollowingKey), key)
	return hexKey(&g.downstream.following, appendField(message, step))
}
