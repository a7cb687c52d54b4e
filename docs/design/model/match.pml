/* Which message lands in which receive: one comm that several ranks share, each with a tag of its
 * own. README.md beside this file tells what is modelled and how to run it; the names are those of
 * nccl_plugin/core/.
 *
 * Each rank posts K messages in order; nothing orders one rank's messages among the other's. The
 * receiver posts slots for them in any order, one or two in a receive, so groups shrink and one rank
 * may be far ahead of the other. Small messages go before their CTS as long as the sender may
 * guess; what was guessed wrong is dropped by the receiver and taken back by the sender. Chunks,
 * CTS and acknowledgements arrive at any time and in any order. Nothing is lost: that is
 * fence.pml's part.
 */
#define T 2 /* ranks, which are tags */
#ifndef K
#define K 2 /* messages of each */
#endif
#define N (T * K)
#define G N      /* receives at most */
#define NONE 255
#define TAG(m) ((m) / K)
#define NTH(m) ((m) % K)

/* The sender. */
mtype = { unposted, unmatched, eager, filed };
mtype state[N] = unposted;
bool large[N];          /* never before its CTS */
bool gone[N];           /* its chunk went out, as `state` says */
byte group_of[N];
byte slot_of[N];
byte sent[T];           /* messages of the rank that are posted */
byte known;             /* groups below are known here */
byte filled[2 * G];     /* by slot: its message, + 1 */
byte n_eager;           /* eager messages, for groups known, known + 1, ... */
byte run_tag = NONE;
bool run_has_cts;
bool may_guess = true;
byte s_era;

/* The receiver. */
byte posted;
byte slots[G];
byte tag_of[2 * G];     /* by slot */
byte nth_of[2 * G];     /* the slot is the n-th of its tag */
byte era_of[G];
byte wanted[T];         /* slots of the tag that are posted */
byte content[2 * G];    /* by slot: which message lies there, + 1 */
byte kept[G];           /* came before the receive, + 1 */
byte kept_era[G];
byte r_era;
byte r_run = NONE;
bool r_single = true;
byte placed;

/* The network. */
byte early[N * G];      /* an eager chunk for that group is on its way: its era, + 1 */
bool late[N];           /* a chunk for a slot with a CTS is */

/* Of single actions: 0 between two of them. */
byte m, g, s, t, e, i;
bool single, of_run;
inline clean() { m = 0; g = 0; s = 0; t = 0; e = 0; i = 0; single = 0; of_run = 0 }

#ifdef MUT_SINGLE_TAG_IGNORED
#define FITS(gr, sl, mm) (tag_of[2 * (gr) + (sl)] == TAG(mm) || slots[gr] == 1)
#else
#define FITS(gr, sl, mm) (tag_of[2 * (gr) + (sl)] == TAG(mm))
#endif
#ifdef MUT_GUESS_OF_ANOTHER_TAG
#define OF_RUN(mm) true
#else
#define OF_RUN(mm) (run_tag == NONE || run_tag == TAG(mm))
#endif
#ifdef MUT_TAG_NOT_COMPARED
#define SAME_TAG(a, b) true
#else
#define SAME_TAG(a, b) ((a) == (b))
#endif
#ifdef MUT_ERA_NOT_COMPARED
#define SAME_ERA(a, b) true
#else
#define SAME_ERA(a, b) ((a) == (b))
#endif
#ifdef MUT_TAG_BREAKS_NOTHING
#define TAG_BREAKS false
#else
#define TAG_BREAKS true
#endif

/* ---- the sender ------------------------------------------------------------------------------ */

/* Every message that has no slot: into the first free one of its tag, or eagerly. */
inline match() {
  m = 0;
  do
  :: m < N ->
    if
    :: state[m] == unmatched ->
      g = 0;
      do
      :: g < known && state[m] == unmatched ->
        s = 0;
        do
        :: s < slots[g] && state[m] == unmatched ->
          if
          :: filled[2 * g + s] == 0 && FITS(g, s, m) ->
            filled[2 * g + s] = m + 1;
            state[m] = filed;
            group_of[m] = g;
            slot_of[m] = s
          :: else
          fi;
          s++
        :: else -> break
        od;
        g++
      :: else -> break
      od
    :: else
    fi;
    m++
  :: else -> break
  od;
  m = 0;
  do
  :: m < N ->
    if
    :: state[m] == unmatched && may_guess && !large[m] && OF_RUN(m) ->
      /* not before an earlier one of its tag; before any tag is known, before none at all */
      e = 0;
      i = 0;
      do
      :: i < N ->
        if
        :: state[i] == unmatched && i != m && (run_tag == NONE || (TAG(i) == TAG(m) && i < m)) ->
          e = 1
        :: else
        fi;
        i++
      :: else -> break
      od;
      if
      :: e == 0 ->
        state[m] = eager;
        group_of[m] = known + n_eager;
        slot_of[m] = 0;
        n_eager++;
        run_tag = TAG(m)
      :: else
      fi
    :: else
    fi;
    m++
  :: else -> break
  od;
  clean()
}

inline take_back() {
  m = 0;
  do
  :: m < N ->
    if
    :: state[m] == eager ->
#ifndef MUT_NOT_TAKEN_BACK
      state[m] = unmatched;
      gone[m] = false;
#endif
      group_of[m] = 0
    :: else
    fi;
    m++
  :: else -> break
  od;
  n_eager = 0;
  m = 0
}

/* The first eager message has filled the next group, which is a single receive of its tag. */
inline adopt() {
  m = 0;
  do
  :: m < N ->
    if
    :: state[m] == eager && group_of[m] == known ->
      state[m] = filed;
      filled[2 * known] = m + 1;
      n_eager--
    :: else
    fi;
    m++
  :: else -> break
  od;
  m = 0
}

inline sender_post(tag) {
  m = tag * K + sent[tag];
  sent[tag]++;
  state[m] = unmatched;
  if
  :: large[m] = true
  :: skip
  fi;
  match()
}

inline sender_send(mm) {
  if
  :: state[mm] == eager -> early[mm * G + group_of[mm]] = s_era + 1
  :: else -> late[mm] = true
  fi;
  gone[mm] = true
}

inline learn_cts() {
  single = slots[known] == 1;
  t = tag_of[2 * known];
  of_run = single && (run_tag == NONE || run_tag == t);
  if
  :: !single || (!of_run && run_has_cts && TAG_BREAKS) -> s_era++
  :: else
  fi;
  may_guess = single;
  run_has_cts = single;
  if
  :: single -> run_tag = t
  :: else -> run_tag = NONE
  fi;
  if
  :: of_run -> adopt()
  :: else -> take_back()
  fi;
  known++;
  match()
}

/* The receiver is done with a group whose CTS was not heard: what went eagerly has filled it. */
inline learn_done() {
  assert(run_tag == tag_of[2 * known]);
  run_has_cts = true;
  adopt();
  known++;
  match()
}

/* ---- the receiver ---------------------------------------------------------------------------- */

inline place(gr, sl, mm) {
  assert(content[2 * (gr) + (sl)] == 0);
  assert(tag_of[2 * (gr) + (sl)] == TAG(mm)); /* in the buffer of its tag */
  assert(nth_of[2 * (gr) + (sl)] == NTH(mm)); /* in order within the tag */
  content[2 * (gr) + (sl)] = (mm) + 1;
  placed++
}

inline add_slot(tag) {
  tag_of[2 * posted + slots[posted]] = tag;
  nth_of[2 * posted + slots[posted]] = wanted[tag];
  wanted[tag]++;
  slots[posted]++
}

inline receiver_post() {
  g = posted;
  t = tag_of[2 * g];
  r_single = slots[g] == 1;
  if
  :: !r_single || (r_run != NONE && r_run != t && TAG_BREAKS) -> r_era++
  :: else
  fi;
  if
  :: r_single -> r_run = t
  :: else -> r_run = NONE
  fi;
  i = 0;
  do
  :: i < G ->
    if
    :: kept[i] != 0 && !(r_single && SAME_ERA(kept_era[i], r_era) && SAME_TAG(TAG(kept[i] - 1), t)) ->
#ifdef MUT_KEPT_STAYS
      if
      :: i == g -> kept[i] = 0
      :: else
      fi
#else
      kept[i] = 0
#endif
    :: else
    fi;
    i++
  :: else -> break
  od;
  era_of[g] = r_era;
  posted++;
  if
  :: kept[g] != 0 ->
    m = kept[g] - 1;
    kept[g] = 0;
    place(g, 0, m)
  :: else
  fi;
  clean()
}

inline early_arrives(mm, gr) {
  e = early[(mm) * G + (gr)] - 1;
  early[(mm) * G + (gr)] = 0;
  if
  :: gr < posted ->
    if
    :: SAME_ERA(e, era_of[gr]) && slots[gr] == 1 && SAME_TAG(tag_of[2 * (gr)], TAG(mm)) &&
       content[2 * (gr)] == 0 -> place(gr, 0, mm)
    :: else
    fi
  :: else ->
    if
    :: SAME_ERA(e, r_era) && r_single && (r_run == NONE || SAME_TAG(r_run, TAG(mm))) &&
       kept[gr] == 0 ->
      kept[gr] = (mm) + 1;
      kept_era[gr] = e
    :: else
    fi
  fi;
  e = 0
}

inline late_arrives(mm) {
  late[mm] = false;
  place(group_of[mm], slot_of[mm], mm)
}

#define MAY_POST(tag) (wanted[tag] < K)
#define ALL_IN (placed == N)

/* One choice of the loop below for each message, and for each message and group. */
#define SEND(x) \
  :: atomic { (state[x] == eager || state[x] == filed) && !gone[x] -> sender_send(x) }
#define LATE(x) :: atomic { late[x] -> late_arrives(x) }
#define EARLY(x, gr) :: atomic { early[(x)*G + (gr)] != 0 -> early_arrives(x, gr) }
#if K == 2
#define EACH(what) what(0) what(1) what(2) what(3)
#define EARLIES(x) EARLY(x, 0) EARLY(x, 1) EARLY(x, 2) EARLY(x, 3)
#else
#define EACH(what) what(0) what(1) what(2) what(3) what(4) what(5)
#define EARLIES(x) EARLY(x, 0) EARLY(x, 1) EARLY(x, 2) EARLY(x, 3) EARLY(x, 4) EARLY(x, 5)
#endif

/* Without a choice before all is in, this is an invalid end: something was never sent again. */
init {
  do
  :: atomic { ALL_IN && known == posted -> break }
  :: atomic { sent[0] < K -> sender_post(0) }
  :: atomic { sent[1] < K -> sender_post(1) }
  EACH(SEND)
  :: atomic { known < posted -> learn_cts() }
  :: atomic {
       known < posted && slots[known] == 1 && content[2 * known] != 0 &&
       state[content[2 * known] - 1] == eager && group_of[content[2 * known] - 1] == known ->
       learn_done()
     }
  :: atomic { MAY_POST(0) -> add_slot(0); receiver_post() }
  :: atomic { MAY_POST(1) -> add_slot(1); receiver_post() }
  :: atomic { MAY_POST(0) && MAY_POST(1) -> add_slot(0); add_slot(1); receiver_post() }
  :: atomic { MAY_POST(0) && MAY_POST(1) -> add_slot(1); add_slot(0); receiver_post() }
  :: atomic { wanted[0] + 1 < K -> add_slot(0); add_slot(0); receiver_post() }
  EACH(LATE)
  EACH(EARLIES)
  od
}
