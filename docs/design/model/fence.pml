/* Fence and replay: one comm, two cores, two paths. README.md beside this file tells what is
 * modelled, what is not and how to run it; the names are those of nccl_plugin/core/.
 *
 * Bytes land as one-sided writes do: whatever comes over a connection that stands is written, and
 * nobody can refuse it. That is the stricter of the two transports: a stream's receiver would drop
 * a second copy. With ONE_SIDED a connection that the receiver gives up goes on writing until the
 * end of it is confirmed, and until then no fence of it is answered.
 *
 * What the two ends tell each other stays true for ever (a CTS, an acknowledgement, a hello, a
 * fence request), so losing, delaying, repeating and reordering it comes to this: the other end may
 * learn any true one of them at any time, again and again, or not yet. Only the answer to a fence
 * is a picture of a moment; the last one
 * of each path stays in the network.
 */
#define NP 2 /* paths */
#define OTHER(p) (1 - (p))
#ifndef M
#define M 2 /* messages */
#endif
#ifndef C
#define C 1 /* chunks of each */
#endif
#ifndef B
#define B 1 /* the receiver's buffers: receive g is posted into buffer g % B */
#endif
#ifndef FAULTS
#define FAULTS 2 /* ends that give a path up, attempts that are given up, paths that die */
#endif
#ifndef W
#define W 2 /* chunks on the way on one connection */
#endif
#define N (M * C)
#define EPOCHS (2 * FAULTS + 2) /* asserted to be enough */
#define BIT(i) (1 << (i))
#define ALL (BIT(M) - 1)
#define WHOLE(set, g) (((set >> ((g)*C)) & (BIT(C) - 1)) == BIT(C) - 1)

/* The rules that a mutation leaves out (MUT_...; a few more stand where they act). */
#ifdef MUT_OLD_EPOCH
#define ADMITTED(e, lowest) true
#else
#define ADMITTED(e, lowest) (e >= lowest)
#endif
#ifdef MUT_OLD_CHUNK
#define NEWEST(e, current) true
#else
#define NEWEST(e, current) (e == current)
#endif
#ifdef MUT_REPLAY_OF_LIVING
#define FENCED(e, fence) true
#else
#define FENCED(e, fence) (e < fence)
#endif
#ifdef MUT_ANSWER_OF_ANOTHER
#define ANSWERS_IT(e, fence) true
#else
#define ANSWERS_IT(e, fence) (e == fence)
#endif

/* The sender. */
mtype = { unsent, flying, again, settled }; /* settled: a fence's answer named it */
mtype place[N] = unsent;
byte flew[N];         /* on which path ... */
byte flew_epoch[N];   /* ... and epoch */
byte group_of[M];     /* the receive that a message goes into */
byte matched;         /* messages below have one */
byte has_cts;         /* bit per receive: the sender knows of it */
byte used;            /* bit per receive: a message goes there */
byte acknowledged;    /* bit per message */
byte completed;       /* bit per message: the caller has its buffer back */
bool live[NP];        /* the sender's end of a connection ... */
bool dialing[NP];     /* ... that stands, or is being made */
byte epoch[NP];       /* of the newest attempt */
byte live_epoch[NP];
bool fencing[NP];
byte fence[NP];

/* The receiver. */
byte posted;          /* receives below are posted */
byte consumed;        /* receives below were done; their buffers are the caller's again */
byte have;            /* bit per chunk, by receive */
byte content[N];      /* which message's chunk lies there, + 1 */
bool open[NP];        /* the receiver's end */
byte current[NP];
byte lowest[NP] = 1;  /* nothing below is admitted */
bool dying[NP];       /* ONE_SIDED: given up, while its NIC may still write */
bool telling[NP];     /* it gave the path up and answers the fence unasked */

/* The network. */
chan wire[NP] = [W] of { byte }; /* of the connection that the receiver has, in order */
byte old[NP];                    /* a chunk of a connection that was retired, + 1 ... */
byte old_epoch[NP];
short hellos[NP];                /* bit per epoch: dialled once */
short fences[NP];                /* asked once */
bool welcome[NP];                /* the newest attempt was admitted */
bool dead[NP];                   /* this path carries nothing now */
typedef Answer { byte epoch; byte have; bool unasked };
Answer answer[NP];
byte faults;

#ifdef MUT_FENCE_NOT_AWAITED
#define ANSWERABLE(p, e) true
#else
#define ANSWERABLE(p, e) !(dying[p] && current[p] < e)
#endif
#define WRITES(p) (open[p] || dying[p])

/* Of single actions: 0 between two of them. */
byte i, chunk, group, bit_of;
inline clean() { i = 0; chunk = 0; group = 0; bit_of = 0 }

#define ACKED(m) ((acknowledged & BIT(m)) != 0)
#define DONE (consumed == M && completed == ALL)

/* ---- the receiver ---------------------------------------------------------------------------- */

/* A write lands. */
inline land(c) {
  group = group_of[(c) / C];
  bit_of = group * C + (c) % C;
  assert(group < posted);        /* only what a CTS offered is written */
  assert(group >= consumed);     /* never a recycled buffer */
  assert(!(have & BIT(bit_of))); /* never twice */
  have = have | BIT(bit_of);
  content[bit_of] = (c) / C + 1
}

/* What can never be admitted again need not be remembered. */
inline raise(p, e) {
  if :: lowest[p] < e -> lowest[p] = e :: else fi;
#ifndef MUT_OLD_EPOCH
  hellos[p] = hellos[p] & ~(BIT(lowest[p]) - 1)
#endif
}

/* The connection is over, or with ONE_SIDED its end begins. */
inline retire(p) {
  open[p] = false;
#ifndef MUT_RETIRED_RETURNS
  raise(p, current[p] + 1);
#endif
#ifdef ONE_SIDED
  dying[p] = true
#else
  drop(p)
#endif
}

/* The transport confirms that nothing of it can write any more. */
inline confirm(p) {
  atomic { dying[p] -> dying[p] = false; drop(p) }
}

/* What the kernel held has landed before (or not: a prefix did); the rest is old. */
inline drop(p) {
  do
  :: nempty(wire[p]) ->
     wire[p]?chunk;
     if :: old[p] = chunk + 1; old_epoch[p] = current[p] :: true fi
  :: empty(wire[p]) -> break
  od;
  clean()
}

inline receiver_post() {
  atomic { posted < M && posted < consumed + B -> posted++ }
}

inline receiver_consume() {
  d_step {
    consumed < posted && WHOLE(have, consumed) ->
    i = 0;
    do
    :: i < C -> assert(content[consumed * C + i] == consumed + 1); i++ /* in posted order */
    :: else -> break
    od;
    consumed++;
    clean()
  }
}

inline arrive(p) {
  d_step { WRITES(p) && !dead[p] && nempty(wire[p]) -> wire[p]?chunk; land(chunk); clean() }
}

/* A chunk of a connection that is gone. The core is asked with its epoch. */
inline arrive_old(p) {
  d_step {
    old[p] != 0 && open[p] && NEWEST(old_epoch[p], current[p]) -> land(old[p] - 1); clean()
  }
}

inline hello_arrives(p, e, now) {
  atomic {
    now && !dead[p] && (hellos[p] & BIT(e)) && ADMITTED(e, lowest[p]) &&
        (!open[p] || e > current[p]) && !dying[p] ->
    if :: open[p] -> retire(p) :: else fi;
    if
    :: !dying[p] ->
       open[p] = true;
       current[p] = e;
       raise(p, e);
       telling[p] = false;
       if :: e == epoch[p] && dialing[p] -> welcome[p] = true :: else fi
    :: else /* not yet: it is heard again */
    fi
  }
}

inline fence_arrives(p, e, now) {
  atomic {
    now && (fences[p] & BIT(e)) ->
    raise(p, e);
#ifndef MUT_FENCE_LEAVES_OPEN
    if :: open[p] && current[p] < e -> retire(p) :: else fi;
#endif
    if
    :: ANSWERABLE(p, e) ->
       if :: telling[p] && current[p] < e -> telling[p] = false :: else fi;
       if :: !WRITES(p) && current[p] < e -> current[p] = 0 :: else fi;
       answer[p].epoch = e; answer[p].have = have; answer[p].unasked = false
    :: else /* not yet: it is asked again */
    fi
  }
}

/* The receiver finds the path dead by itself. */
inline receiver_gives_up(p) {
  retire(p);
#ifndef MUT_NOT_TOLD
  telling[p] = true
#else
  current[p] = 0
#endif
}

inline tell(p) {
  d_step {
    telling[p] && ANSWERABLE(p, current[p] + 1) ->
    answer[p].epoch = current[p] + 1; answer[p].have = have;
    answer[p].unasked = true
  }
}

/* ---- the sender ------------------------------------------------------------------------------ */

/* A CTS is learnt; messages take receives in posted order, also where CTS come out of it. */
inline learn_cts(g) {
  d_step {
    g < posted && !(has_cts & BIT(g)) ->
    has_cts = has_cts | BIT(g);
    do
    :: matched < M ->
       i = 0;
       do
#ifndef MUT_CTS_AS_THEY_COME
       :: i < M && (has_cts & BIT(i)) && (used & BIT(i)) -> i++
       :: else -> break
#else
       :: i < M && (!(has_cts & BIT(i)) || (used & BIT(i))) -> i++
       :: else -> break
#endif
       od;
       if
       :: i < M && (has_cts & BIT(i)) ->
          group_of[matched] = i; used = used | BIT(i); matched++
       :: else -> break
       fi
    :: else -> break
    od;
    clean()
  }
}

/* Its chunks leave the lists. */
inline acknowledge(m) {
  acknowledged = acknowledged | BIT(m);
  chunk = (m) * C;
  do
  :: chunk < (m) * C + C -> settle(chunk); chunk++
  :: else -> break
  od;
  chunk = 0
}

inline settle(c) { place[c] = settled; flew[c] = 0; flew_epoch[c] = 0 }

inline learn_acknowledgement(m) {
  d_step { m < matched && !ACKED(m) && WHOLE(have, group_of[m]) -> acknowledge(m) }
}

inline complete(m) {
  d_step {
#ifndef MUT_DONE_WHEN_WRITTEN
    !(completed & BIT(m)) && ACKED(m) ->
#else
    !(completed & BIT(m)) && m < matched && place[m * C + C - 1] != unsent ->
#endif
    assert(WHOLE(have, group_of[m])); /* only when the receiver has all */
    completed = completed | BIT(m)
  }
}

/* What failed goes first, then what was never sent, in order. */
inline take(p) {
  d_step {
    live[p] && (!WRITES(p) || current[p] != live_epoch[p] || nfull(wire[p])) ->
    chunk = 0;
    do
    :: chunk < N && place[chunk] != again -> chunk++
    :: else -> break
    od;
    if
    :: chunk == N ->
       chunk = 0;
       do
       :: chunk < N && place[chunk] != unsent -> chunk++
       :: else -> break
       od
    :: else
    fi;
    if
    :: chunk < N && chunk / C < matched ->
       assert(!(completed & BIT(chunk / C))); /* never read from a buffer that was given back */
       place[chunk] = flying; flew[chunk] = p; flew_epoch[chunk] = epoch[p];
       if
       :: WRITES(p) && current[p] == live_epoch[p] ->
          i = 0; /* in flight on one living path at a time */
          do
          :: i < NP -> assert(!(WRITES(i) && wire[i]??[eval(chunk)])); i++
          :: else -> break
          od;
          wire[p]!chunk
       :: else /* nobody is there any more */
       fi
    :: else
    fi;
    clean()
  }
}

inline fail(p) {
  live[p] = false; live_epoch[p] = 0;
  epoch[p]++;
  assert(epoch[p] < EPOCHS);
  fence[p] = epoch[p];
  fences[p] = fences[p] | BIT(fence[p]);
#ifdef MUT_REPLAY_BEFORE_ANSWER
  i = 0;
  do
  :: i < N -> if :: place[i] == flying && flew[i] == p -> place[i] = again :: else fi; i++
  :: else -> break
  od;
  i = 0;
#endif
  fencing[p] = true
}

inline dial(p) {
  d_step {
    !live[p] && !dialing[p] && !DONE ->
    dialing[p] = true;
    epoch[p]++;
    assert(epoch[p] < EPOCHS);
    welcome[p] = false;
    if :: epoch[p] >= lowest[p] -> hellos[p] = hellos[p] | BIT(epoch[p]) :: else fi
  }
}

inline welcome_arrives(p) {
  d_step {
    !dead[p] && dialing[p] && welcome[p] ->
    welcome[p] = false; dialing[p] = false; live[p] = true; live_epoch[p] = epoch[p]
  }
}

/* An answer is in the network. It may be of now or of long ago. */
inline answer_arrives(p) {
  d_step {
    answer[p].epoch != 0 ->
    if /* the receiver says that it gave the path up */
    :: answer[p].unasked && live[p] && live_epoch[p] < answer[p].epoch -> fail(p)
    :: answer[p].unasked && dialing[p] && epoch[p] < answer[p].epoch ->
       dialing[p] = false; welcome[p] = false
    :: else
    fi;
    i = 0;
    do
    :: i < matched ->
       if :: WHOLE(answer[p].have, group_of[i]) -> acknowledge(i) :: else fi; i++
    :: else -> break
    od;
    if
    :: fencing[p] && ANSWERS_IT(answer[p].epoch, fence[p]) ->
       i = 0;
       do
       :: i < N ->
          if
          :: place[i] == flying && flew[i] == p && FENCED(flew_epoch[i], fence[p]) ->
             if
             :: answer[p].have & BIT(group_of[i / C] * C + i % C) -> settle(i)
             :: else ->
                settle(i);
#ifndef MUT_NOTHING_REPLAYED
                place[i] = again
#endif
             fi
          :: else
          fi;
          i++
       :: else -> break
       od;
       fencing[p] = false; fence[p] = 0
    :: else
    fi;
    clean()
  }
}

#define may_fault (faults < FAULTS && !DONE)

/* A connection is given up, or a path dies or returns. */
inline fault(p) {
  if
  :: d_step { may_fault && live[p] -> faults++; fail(p) }
  :: atomic { may_fault && open[p] -> faults++; receiver_gives_up(p) }
  :: d_step { may_fault && dialing[p] -> faults++; dialing[p] = false; welcome[p] = false }
  :: d_step { may_fault && !dead[p] && !dead[OTHER(p)] -> faults++; dead[p] = true }
  :: d_step { dead[p] -> dead[p] = false }
  fi
}

inline finds_dead(p) { d_step { live[p] && dead[p] -> fail(p) } }

/* ---- who does what when ---------------------------------------------------------------------- */

#ifndef LIVENESS

/* Anything at any time. */
#define AGAIN(p, e) :: hello_arrives(p, e, true) :: fence_arrives(p, e, true)
#if FAULTS > 1
#define AGAIN_LATER(p) AGAIN(p, 4) AGAIN(p, 5)
#else
#define AGAIN_LATER(p)
#endif
#if FAULTS > 2
#define AGAIN_LAST(p) AGAIN(p, 6) AGAIN(p, 7)
#else
#define AGAIN_LAST(p)
#endif
#define AT(p) \
  :: dial(p) :: welcome_arrives(p) :: take(p) :: arrive(p) :: arrive_old(p) :: tell(p) \
  :: confirm(p) \
  :: answer_arrives(p) :: finds_dead(p) :: fault(p) AGAIN(p, 1) AGAIN(p, 2) AGAIN(p, 3) \
  AGAIN_LATER(p) AGAIN_LAST(p)

active proctype anything() {
end:
  do
  :: receiver_post()
  :: receiver_consume()
  :: learn_cts(0) :: learn_acknowledgement(0) :: complete(0)
#if M > 1
  :: learn_cts(1) :: learn_acknowledgement(1) :: complete(1)
#endif
#if M > 2
  :: learn_cts(2) :: learn_acknowledgement(2) :: complete(2)
#endif
  AT(0)
  AT(1)
  od
}

#else

/* Under weak fairness (pan -f) a process acts in the end where it can. What can be done over and
 * over without effect has a process of its own; the rest is done a bounded number of times, so that
 * it may share one. What is said comes in the end; nothing comes again after something newer.
 */
proctype callers() {
end:
  do
  :: receiver_post()
  :: receiver_consume()
  :: learn_cts(0) :: learn_acknowledgement(0) :: complete(0)
#if M > 1
  :: learn_cts(1) :: learn_acknowledgement(1) :: complete(1)
#endif
  od
}
proctype connection(byte p) {
end:
  do
  :: dial(p)
  :: hello_arrives(p, epoch[p], dialing[p])
  :: welcome_arrives(p)
  :: arrive(p)
  :: confirm(p)
  :: finds_dead(p)
  od
}
proctype sends(byte p) { end: do :: take(p) od }
proctype hears_fence(byte p) { end: do :: fence_arrives(p, fence[p], fencing[p]) od }
proctype tells(byte p) { end: do :: tell(p) od }
proctype hears_answer(byte p) { end: do :: answer_arrives(p) od }
proctype suffers(byte p) { end: do :: fault(p) :: break od }

init {
  atomic {
    run callers();
    run connection(0); run sends(0); run hears_fence(0); run tells(0); run hears_answer(0);
    run suffers(0);
    run connection(1); run sends(1); run hears_fence(1); run tells(1); run hears_answer(1);
    run suffers(1)
  }
}

/* Everything gets through: at most one path is dead at a time, and faults come to an end. */
ltl progress { <> DONE }

#endif
