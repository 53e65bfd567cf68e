/* The kinds of messages that load.c can send besides plain ones, and what each of them does when it is answered.
 *
 *   delay, timer   a property more
 *   transaction    a half message; its answer is followed by a commit that nobody answers
 *   batch          BATCH messages in each request
 *   pop            BATCH messages leased by each request, then acknowledged one by one, WINDOW acks in flight
 */
#define BATCH 32
#define MEMBER_HEAD 20
#define KEY_DIGITS 12 /* the end of a unique key */
#define MOST_EMPTY 200 /* pops in a row that found nothing: other connections have the queues, or nothing is left */
#define NOTHING_FOUND 19
#define POLLING_FULL 209
#define POLLING_TIMEOUT 210
#define LEASE_MS "60000"
#define PREPARED_FLAG 4 /* of a half message */
#define ID_DIGITS 32
#define OFFSET_DIGITS 16 /* in the log, at the end of an id */

enum kind { PLAIN, DELAY, TIMER, TRANSACTION, BATCHED, POP };
static const char *const kind_names[] = {"send", "delay", "timer", "transaction", "batch", "pop"};
static const char *const kind_properties[] = {"", "DELAY\\u00011\\u0002", "TIMER_DELAY_SEC\\u00012\\u0002", "TRAN_MSG\\u0001true\\u0002PGROUP\\u0001load_group\\u0002", "", ""};

struct lease { int queue; long long start, offset; };
struct leases { long long popped_at, revive_queue; int count, next, answered, empty; struct lease of[BATCH]; };

/* A batch of messages that differ in the ends of their keys, `member_bytes` apart. */
static char *members;
static size_t member_bytes, members_bytes;
static void make_members(const char *payload, int body) {
    static const char properties[] = "UNIQ_KEY\0017F00000100012A139A55000000000000\002WAIT\001true\002TAGS\001TagA\002";
    size_t length = sizeof properties - 1;
    member_bytes = MEMBER_HEAD + body + 2 + length; members_bytes = BATCH * member_bytes;
    members = calloc(1, members_bytes);
    for (char *p = members; p < members + members_bytes; p += member_bytes) {
        *(uint32_t *)p = htonl(member_bytes); *(uint32_t *)(p + 16) = htonl(body);
        memcpy(p + MEMBER_HEAD, payload, body);
        *(uint16_t *)(p + MEMBER_HEAD + body) = htons(length);
        memcpy(p + MEMBER_HEAD + body + 2, properties, length);
    }
}
static void number_members(int body, unsigned long long number) {
    for (char *p = members; p < members + members_bytes; p += member_bytes, number++) {
        char *digit = p + MEMBER_HEAD + body + 2 + sizeof "UNIQ_KEY\0017F00000100012A139A55" - 1 + KEY_DIGITS;
        unsigned long long rest = number;
        for (int i = 0; i < KEY_DIGITS; i++, rest >>= 4) *--digit = "0123456789ABCDEF"[rest & 15];
    }
}

/* The value of a text field in a JSON header; it ends at a quote. */
static const char *text_field(const char *h, size_t n, const char *key) {
    char *p = memmem(h, n, key, strlen(key));
    return p ? p + strlen(key) + sizeof "\":\"" - 1 : NULL;
}
/* Queues by `;`, in each: kind of topic, queue, then the start, or all offsets by `,`. */
static void read_leases(struct leases *l, const char *h, size_t n) {
    const char *start = text_field(h, n, "\"startOffsetInfo"), *offsets = text_field(h, n, "\"msgOffsetInfo");
    l->popped_at = field(h, n, "\"popTime\""); l->revive_queue = field(h, n, "\"reviveQid\"");
    l->count = l->next = l->answered = 0;
    while (start && offsets && *offsets != '"') {
        char *end; strtol(offsets, &end, 10);
        int queue = strtol(end, &end, 10);
        char *behind; strtol(start, &behind, 10); strtol(behind, &behind, 10);
        long long first = strtoll(behind, &behind, 10);
        do {
            long long offset = strtoll(end, &end, 10);
            if (l->count < BATCH) l->of[l->count++] = (struct lease){queue, first, offset};
        } while (*end++ == ',');
        offsets = end[-1] == ';' ? end : "\"";
        start = *behind == ';' ? behind + 1 : NULL;
    }
}
