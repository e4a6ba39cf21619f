/* The ordinary case of recording an op: ``record``, ``record_pair`` and ``record_into`` of gt/recording.py.

   recording.py has the meaning, and takes every call that is not ordinary here: operands of another thread, stale views, casts,
   a trace that is being flushed, a rule not seen before. What is said there about order, ``busy`` and ``mend`` holds here.
   Nothing else happens on the thread while an op is appended: the collector of cycles, whose finalizers may record and read, runs
   before, when the rule is looked up. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#ifdef Py_GIL_DISABLED
#error "traces are guarded by the interpreter lock"
#endif

#define SLOT(object, offset) (*(PyObject **)((char *)(object) + (offset)))

/* The classes that recording looks at, and where in their objects the slots lie. */

static PyTypeObject *Operand, *Number, *Tensor, *Trace, *Modes, *Rule, *Buffer, *Mark, *TensorType, *Code;
static PyObject *state, *rules, *ours, *input_entries, *number_entries, *stale, *storage_class, *ids;
static PyObject *slow_record, *slow_pair, *slow_into, *slow_low, *slow_cast, *cast_op, *cast_to, *slow_attribute;

static struct {
    Py_ssize_t _trace, _index, _type, _buffer, _base, _rg, _leaf, _root, _view, _storage, _seen, _version, _tape, _name, _before;
} operand;
static struct { Py_ssize_t value; } number;
static struct {
    Py_ssize_t modes, code, where, handles, size, inputs, input_ids, scalars, scalar_ids, leaves, links, overwritten, closing,
        sealed, session, names, stop, weighed, busy, held, recorder, expected, viewed;
} trace_at;
static struct { Py_ssize_t grad, autocast; } modes_at;
static struct { Py_ssize_t id, taped, outputs, single, count, differentiable; } rule_at;
static struct { Py_ssize_t id, type, session, mark, last; } buffer_at;
static struct { Py_ssize_t written; } mark_at;
static struct { Py_ssize_t nbytes, differentiable, dtype; } type_at;
static struct { Py_ssize_t entries, where; } code_at;

static struct {
    PyObject *trace, *autocast, *__name__, *enter, *mend, *weigh, *_parameters, *_modules, *_buffers;
} name;

static PyObject *empty, *no_name, *zero, *one, *minus_one;

/* -- slots */

static Py_ssize_t offset(PyTypeObject *type, const char *slot)
{
    PyObject *member = PyObject_GetAttrString((PyObject *)type, slot);
    if (member == NULL)
        return -1;
    Py_ssize_t at = -1;
    if (Py_IS_TYPE(member, &PyMemberDescr_Type) && ((PyMemberDescrObject *)member)->d_member->type == T_OBJECT_EX)
        at = ((PyMemberDescrObject *)member)->d_member->offset;
    else
        PyErr_Format(PyExc_TypeError, "%s.%s is no slot", type->tp_name, slot);
    Py_DECREF(member);
    return at;
}

static inline void put(PyObject *object, Py_ssize_t at, PyObject *value)
{
    PyObject *before = SLOT(object, at);
    SLOT(object, at) = Py_NewRef(value);
    Py_XDECREF(before);
}

static inline int put_number(PyObject *object, Py_ssize_t at, Py_ssize_t value)
{
    PyObject *as_object = PyLong_FromSsize_t(value);
    if (as_object == NULL)
        return -1;
    PyObject *before = SLOT(object, at);
    SLOT(object, at) = as_object;
    Py_XDECREF(before);
    return 0;
}

static inline Py_ssize_t number_in(PyObject *object, Py_ssize_t at) { return PyLong_AsSsize_t(SLOT(object, at)); }

/* A tuple without references to what the collector of cycles follows: it need not be looked at. */
static inline PyObject *plain_pair(PyObject *a, PyObject *b)
{
    PyObject *pair = PyTuple_Pack(2, a, b);
    if (pair != NULL)
        PyObject_GC_UnTrack(pair);
    return pair;
}

/* Give what is in the list of the trace that this one is expected to repeat, where its own list ends: borrowed, NULL if nothing. */
static PyObject *expected(PyObject *trace, Py_ssize_t own, Py_ssize_t list)
{
    PyObject *code = SLOT(trace, trace_at.expected);
    if (!Py_IS_TYPE(code, Code))
        return NULL;
    Py_ssize_t at = PyList_GET_SIZE(SLOT(trace, own));
    PyObject *there = SLOT(code, list), *pair = at < PyList_GET_SIZE(there) ? PyList_GET_ITEM(there, at) : NULL;
    return pair != NULL && PyTuple_CheckExact(pair) && PyTuple_GET_SIZE(pair) == 2 ? pair : NULL;
}

/* -- what an op is recorded from */

/* Append the user's code and instruction to ``trace.where``. ``depth``: as in recording.py. */
static int append_place(PyObject *trace, Py_ssize_t depth)
{
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    while (frame != NULL) {
        if (--depth <= 0) {
            PyObject *globals = PyFrame_GetGlobals(frame);
            PyObject *module = PyDict_GetItemWithError(globals, name.__name__);
            Py_DECREF(globals);
            if (module == NULL) {
                if (PyErr_Occurred()) {
                    Py_DECREF(frame);
                    return -1;
                }
                break;
            }
            PyObject *is_ours = PyDict_GetItemWithError(ours, module);
            if (is_ours == NULL && !PyErr_Occurred()) {
                is_ours = PyObject_GetItem(ours, module);
                Py_XDECREF(is_ours); /* the table holds it now */
            }
            if (is_ours == NULL) {
                Py_DECREF(frame);
                return -1;
            }
            if (is_ours != Py_True)
                break;
        }
        PyFrameObject *back = PyFrame_GetBack(frame);
        if (back == NULL)
            break; /* all of them are gt's: the outermost */
        Py_DECREF(frame);
        frame = back;
    }
    if (frame == NULL) {
        PyErr_SetString(PyExc_SystemError, "recording outside of any frame");
        return -1;
    }
    PyObject *code = (PyObject *)PyFrame_GetCode(frame), *pair = expected(trace, trace_at.where, code_at.where), *at = NULL;
    int lasti = PyFrame_GetLasti(frame), failed;
    Py_DECREF(frame);
    if (pair != NULL && PyTuple_GET_ITEM(pair, 0) == code && PyLong_AsLong(PyTuple_GET_ITEM(pair, 1)) == lasti)
        Py_INCREF(pair);
    else
        pair = (at = PyLong_FromLong(lasti)) == NULL ? NULL : plain_pair(code, at);
    failed = pair == NULL || PyList_Append(SLOT(trace, trace_at.where), pair);
    Py_DECREF(code);
    Py_XDECREF(at);
    Py_XDECREF(pair);
    return failed ? -1 : 0;
}

/* Say whether a view has seen the last change of what it is a view of. */
static inline int current(PyObject *t)
{
    PyObject *root = SLOT(t, operand._root), *seen = SLOT(t, operand._seen);
    return root != NULL && root != Py_None && seen != NULL && (seen == SLOT(root, operand._version) || number_in(t, operand._seen) == number_in(root, operand._version));
}

static inline int are_operands(PyObject *const *given, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        if (!PyObject_TypeCheck(given[i], Operand) || SLOT(given[i], operand._base) == NULL || SLOT(given[i], operand._trace) == NULL)
            return 0;
    return 1;
}

/* Say whether an operand is an ordinary one of ``trace``. */
static inline int fits(PyObject *t, PyObject *trace)
{
    PyObject *of = SLOT(t, operand._trace);
    if (of != trace && of != Py_None)
        return 0;
    return SLOT(t, operand._base) == Py_None ? 1 : current(t);
}

static int enter_number(PyObject *trace, PyObject *t, PyObject *index)
{
    PyObject *entry = PyDict_GetItemWithError(number_entries, SLOT(t, operand._type));
    if (entry == NULL)
        return -1;
    if (PyList_Append(SLOT(trace, trace_at.scalars), SLOT(t, number.value))
        || PyList_Append(SLOT(trace, trace_at.scalar_ids), index) || PyList_Append(SLOT(trace, trace_at.where), Py_None)
        || PyList_Append(SLOT(trace, trace_at.code), entry))
        return -1;
    return put_number(trace, trace_at.size, PyLong_AsSsize_t(index) + 1);
}

static int enter_buffer(PyObject *trace, PyObject *t, PyObject *buffer, PyObject *index)
{
    PyObject *type = SLOT(buffer, buffer_at.type);
    PyObject *entry = PyObject_GetItem(input_entries, type);
    if (entry == NULL)
        return -1;
    int failed = PyList_Append(SLOT(trace, trace_at.inputs), buffer) || PyList_Append(SLOT(trace, trace_at.where), Py_None)
        || PyList_Append(SLOT(trace, trace_at.code), entry)
        || PyDict_SetItem(SLOT(trace, trace_at.input_ids), SLOT(buffer, buffer_at.id), index);
    Py_DECREF(entry);
    if (failed || put_number(trace, trace_at.size, PyLong_AsSsize_t(index) + 1))
        return -1;
    Py_ssize_t left = number_in(trace, trace_at.weighed) - number_in(type, type_at.nbytes);
    if (put_number(trace, trace_at.weighed, left))
        return -1;
    if (left < 0) {
        PyObject *done = PyObject_CallMethodNoArgs(trace, name.weigh);
        if (done == NULL)
            return -1;
        Py_DECREF(done);
    }
    PyObject *called = SLOT(t, operand._name);
    int named = PyObject_IsTrue(called);
    return named < 0 || (named && PyDict_SetItem(SLOT(trace, trace_at.names), index, called)) ? -1 : 0;
}

/* Let a tensor accumulate the gradient of a value. */
static int accumulate(PyObject *trace, PyObject *t, PyObject *index)
{
    PyObject *ref = PyWeakref_NewRef(t, NULL), *leaf = ref == NULL ? NULL : PyTuple_Pack(2, ref, SLOT(t, operand._version));
    int failed = leaf == NULL || PyDict_SetItem(SLOT(trace, trace_at.leaves), index, leaf);
    Py_XDECREF(ref);
    Py_XDECREF(leaf);
    return failed ? -1 : 0;
}

/* Say to whom the gradient of an input goes. */
static int follow(PyObject *trace, PyObject *t, PyObject *index)
{
    PyObject *leaves = SLOT(trace, trace_at.leaves), *links = SLOT(trace, trace_at.links);
    int known = PyDict_Contains(leaves, index);
    if (known == 0)
        known = PyDict_Contains(links, index);
    if (known)
        return known < 0 ? -1 : 0;
    PyObject *tape = SLOT(t, operand._tape);
    return tape != Py_None ? PyDict_SetItem(links, index, tape) : accumulate(trace, t, index);
}

/* Give the value id of an operand, a new reference; what is not in the trace yet becomes an input of it. */
static PyObject *id_of(PyObject *trace, PyObject *t)
{
    if (SLOT(t, operand._trace) == trace)
        return Py_NewRef(SLOT(t, operand._index));
    PyObject *index = SLOT(trace, trace_at.size);
    if (Py_IS_TYPE(t, Number)) {
        Py_INCREF(index);
        if (enter_number(trace, t, index) == 0)
            return index;
        Py_DECREF(index);
        return NULL;
    }
    PyObject *buffer = SLOT(t, operand._buffer);
    if (buffer == NULL || !Py_IS_TYPE(buffer, Buffer) || SLOT(trace, trace_at.recorder) != Py_None
        || SLOT(buffer, buffer_at.session) != SLOT(trace, trace_at.session))
        return PyObject_CallMethodOneArg(trace, name.enter, t);
    PyObject *known = PyDict_GetItemWithError(SLOT(trace, trace_at.input_ids), SLOT(buffer, buffer_at.id));
    if (known == NULL && PyErr_Occurred())
        return NULL;
    index = Py_NewRef(known != NULL ? known : index);
    Py_INCREF(buffer);
    int failed = known == NULL && enter_buffer(trace, t, buffer, index);
    if (!failed && SLOT(t, operand._rg) == Py_True)
        failed = follow(trace, t, index);
    Py_DECREF(buffer);
    if (failed) {
        Py_DECREF(index);
        return NULL;
    }
    return index;
}

#define FEW 8

/* Say whether an entry is (rule, ids). */
static int is_entry(PyObject *entry, PyObject *rule, PyObject *const *ids, Py_ssize_t n)
{
    PyObject *there = PyTuple_GET_ITEM(entry, 1);
    int same = PyLong_AsSsize_t(PyTuple_GET_ITEM(entry, 0)) == PyLong_AsSsize_t(rule) && PyTuple_CheckExact(there) && PyTuple_GET_SIZE(there) == n;
    for (Py_ssize_t i = 0; same && i < n; i++)
        same = PyLong_AsSsize_t(PyTuple_GET_ITEM(there, i)) == PyLong_AsSsize_t(ids[i]);
    return same;
}

/* Give the entry (rule, value ids of the operands), a new reference: the expected one if it is equal. */
static PyObject *entry_of(PyObject *trace, PyObject *rule, PyObject *const *operands, Py_ssize_t n)
{
    PyObject *few[FEW], **ids = n <= FEW ? few : PyMem_New(PyObject *, n), *entry = NULL, *tuple;
    Py_ssize_t known = 0;
    if (ids == NULL)
        return PyErr_NoMemory();
    while (known < n && (ids[known] = id_of(trace, operands[known])) != NULL)
        known++;
    if (known == n) {
        entry = expected(trace, trace_at.code, code_at.entries);
        if (entry != NULL && is_entry(entry, rule, ids, n)) {
            Py_INCREF(entry);
        } else if ((tuple = PyTuple_New(n)) == NULL) {
            entry = NULL;
        } else {
            for (Py_ssize_t i = 0; i < n; i++)
                PyTuple_SET_ITEM(tuple, i, Py_NewRef(ids[i]));
            if (n)
                PyObject_GC_UnTrack(tuple);
            entry = plain_pair(rule, tuple);
            Py_DECREF(tuple);
        }
    }
    while (known > 0)
        Py_DECREF(ids[--known]);
    if (ids != few)
        PyMem_Free(ids);
    return entry;
}

/* -- results */

static PyObject *new_handle(PyObject *trace, PyObject *index, PyObject *type, int taped)
{
    PyObject *out = PyBaseObject_Type.tp_new(Tensor, empty, NULL);
    if (out == NULL)
        return NULL;
    int flows = taped && SLOT(type, type_at.differentiable) == Py_True;
    SLOT(out, operand._trace) = Py_NewRef(trace);
    SLOT(out, operand._index) = Py_NewRef(index);
    SLOT(out, operand._type) = Py_NewRef(type);
    SLOT(out, operand._buffer) = Py_NewRef(Py_None);
    SLOT(out, operand._base) = Py_NewRef(Py_None);
    SLOT(out, operand._rg) = Py_NewRef(flows ? Py_True : Py_False);
    SLOT(out, operand._leaf) = Py_NewRef(flows ? Py_False : Py_True);
    SLOT(out, operand._root) = Py_NewRef(Py_None);
    SLOT(out, operand._view) = Py_NewRef(Py_None);
    SLOT(out, operand._storage) = Py_NewRef(Py_None);
    SLOT(out, operand._tape) = Py_NewRef(Py_None);
    SLOT(out, operand._seen) = Py_NewRef(zero);
    SLOT(out, operand._version) = Py_NewRef(zero);
    SLOT(out, operand._name) = Py_NewRef(no_name);
    return out;
}

/* Make ``out`` a view of ``of``. */
static int share(PyObject *out, PyObject *of, PyObject *op, PyObject *attrs)
{
    PyObject *root = SLOT(of, operand._base) == Py_None ? of : SLOT(of, operand._root), *view = PyTuple_Pack(2, op, attrs);
    if (view == NULL)
        return -1;
    put(out, operand._view, view);
    Py_DECREF(view);
    if (SLOT(root, operand._storage) == Py_None) {
        PyObject *storage = PyObject_CallNoArgs(storage_class);
        if (storage == NULL)
            return -1;
        put(root, operand._storage, storage);
        Py_DECREF(storage);
    }
    put(out, operand._base, of);
    put(out, operand._root, root);
    put(out, operand._seen, SLOT(root, operand._version));
    put(out, operand._storage, SLOT(root, operand._storage));
    return 0;
}

/* -- recording */

static PyObject *trace_of_thread(void)
{
    PyObject *trace = PyObject_GetAttr(state, name.trace);
    if (trace != NULL && !Py_IS_TYPE(trace, Trace)) {
        PyErr_SetString(PyExc_SystemError, "a thread's trace is no Trace");
        Py_CLEAR(trace);
    }
    return trace;
}

/* Look up the rule of an op on these operands: borrowed; NULL, without an error too, if there is none yet. */
static PyObject *rule_of(PyObject *op, PyObject *attrs, PyObject *const *operands, Py_ssize_t n)
{
    PyObject *key = PyTuple_New(n + 2);
    if (key == NULL)
        return NULL;
    PyTuple_SET_ITEM(key, 0, Py_NewRef(op));
    PyTuple_SET_ITEM(key, 1, Py_NewRef(attrs));
    for (Py_ssize_t i = 0; i < n; i++)
        PyTuple_SET_ITEM(key, i + 2, Py_NewRef(SLOT(operands[i], operand._type)));
    PyObject *rule = PyDict_GetItemWithError(rules, key);
    Py_DECREF(key);
    return rule;
}

static int appending, collects; /* how many threads append, and whether the collector of cycles is to run when none does */

static inline void vacate(PyObject *trace)
{
    put(trace, trace_at.busy, Py_False);
    if (--appending == 0 && collects)
        PyGC_Enable();
}

/* Begin to append: 1, or 0 to record in Python, where another thread is waited for, or -1 with an error. */
static inline int occupy(PyObject *trace)
{
    if (SLOT(trace, trace_at.busy) == Py_True) {
        PyErr_SetString(PyExc_RuntimeError, "a finalizer or a signal handler used a tensor while an op was being recorded");
        return -1;
    }
    put(trace, trace_at.busy, Py_True);
    if (appending++ == 0)
        collects = PyGC_Disable();
    if (SLOT(trace, trace_at.closing) == Py_True && (number_in(trace, trace_at.held) == 0 || SLOT(trace, trace_at.sealed) == Py_True)) {
        vacate(trace);
        return 0;
    }
    return 1;
}

/* Say whether nothing has been recorded or flushed meanwhile, as what Python's part of recording calls may do. */
static int is_alone(PyObject *trace, Py_ssize_t size)
{
    if (SLOT(trace, trace_at.busy) == Py_True && number_in(trace, trace_at.size) == size)
        return 1;
    PyErr_SetNone(stale);
    return 0;
}

/* End what went wrong halfway: 1 to record in Python, where it is looked at again, or 0 with the error. */
static int mend(PyObject *trace)
{
    PyObject *kind, *error, *traceback;
    PyErr_Fetch(&kind, &error, &traceback);
    PyObject *done = SLOT(trace, trace_at.sealed) == Py_True ? Py_NewRef(Py_None) : PyObject_CallMethodNoArgs(trace, name.mend);
    vacate(trace);
    if (done != NULL && PyErr_GivenExceptionMatches(kind, stale)) {
        Py_DECREF(done);
        Py_XDECREF(kind);
        Py_XDECREF(error);
        Py_XDECREF(traceback);
        return 1;
    }
    if (done == NULL) { /* an interrupt, say: as an exception in recording.py's handler, it is what is raised */
        Py_XDECREF(kind);
        Py_XDECREF(error);
        Py_XDECREF(traceback);
        return 0;
    }
    Py_DECREF(done);
    PyErr_Restore(kind, error, traceback);
    return 0;
}

static PyObject *append(PyObject *trace, PyObject *rule, PyObject *op, PyObject *attrs, PyObject *const *operands, Py_ssize_t n,
                        int taped, Py_ssize_t depth, int view, int first)
{
    PyObject *entry = entry_of(trace, SLOT(rule, taped ? rule_at.taped : rule_at.id), operands, n), *result = NULL, *index = NULL;
    if (entry == NULL || append_place(trace, depth))
        goto end;
    index = Py_NewRef(SLOT(trace, trace_at.size));
    PyObject *outputs = SLOT(rule, rule_at.outputs);
    Py_ssize_t at = PyLong_AsSsize_t(index);
    PyObject *type = first ? PyTuple_GET_ITEM(outputs, 0) : SLOT(rule, rule_at.single);
    if (type != Py_None) {
        result = new_handle(trace, index, type, taped);
        if (result == NULL || (view && share(result, operands[0], op, attrs)) || PyList_Append(SLOT(trace, trace_at.handles), result))
            goto fail;
    } else {
        Py_ssize_t count = PyTuple_GET_SIZE(outputs);
        if ((result = PyTuple_New(count)) == NULL)
            goto fail;
        for (Py_ssize_t i = 0; i < count; i++) {
            PyObject *number = PyLong_FromSsize_t(at + i);
            PyObject *out = number == NULL ? NULL : new_handle(trace, number, PyTuple_GET_ITEM(outputs, i), taped);
            Py_XDECREF(number);
            if (out == NULL)
                goto fail;
            PyTuple_SET_ITEM(result, i, out);
        }
        for (Py_ssize_t i = 0; i < count; i++)
            if (PyList_Append(SLOT(trace, trace_at.handles), PyTuple_GET_ITEM(result, i)))
                goto fail;
    }
    if (!is_alone(trace, at) || PyList_Append(SLOT(trace, trace_at.code), entry)
        || put_number(trace, trace_at.size, at + number_in(rule, rule_at.count)))
        goto fail;
    goto end;
fail:
    Py_CLEAR(result);
end:
    Py_XDECREF(entry);
    Py_XDECREF(index);
    return result;
}

/* Say whether mixed precision has something to say on the operands of an op: 1, 0, or -1 with an error. */
static int is_cast(PyObject *op, PyObject *modes, PyObject *const *operands, Py_ssize_t n)
{
    PyObject *want = SLOT(modes, modes_at.autocast);
    if (want == Py_None)
        return 0;
    Py_ssize_t same = 0;
    while (same < n && PyObject_TypeCheck(operands[same], Operand) && SLOT(SLOT(operands[same], operand._type), type_at.dtype) == want)
        same++;
    if (same == n)
        return 0;
    PyObject *follows = PyObject_GetAttr(op, name.autocast);
    int is = follows == NULL ? -1 : PyObject_IsTrue(follows);
    Py_XDECREF(follows);
    return is;
}

static PyObject *record_ordinary(PyObject *, PyObject *const *, Py_ssize_t, PyObject *, Py_ssize_t, int, int, int);

/* Give arguments, those of a float dtype that mixed precision takes cast to ``want``: gt/autocasting.py's ``cast_all``. */
static PyObject *lowered(PyObject *const *operands, Py_ssize_t n, PyObject *want)
{
    PyObject *out = PyTuple_New(n), *attrs = PyDict_GetItemWithError(cast_to, want);
    for (Py_ssize_t i = 0; out != NULL && i < n; i++) {
        PyObject *t = operands[i], *dtype = NULL, *made = NULL;
        if (PyObject_TypeCheck(t, Operand))
            dtype = SLOT(SLOT(t, operand._type), type_at.dtype);
        if (PyList_Check(t) || PyTuple_Check(t))
            made = PyObject_CallFunctionObjArgs(slow_cast, t, want, NULL);
        else if (dtype == NULL || dtype == want || attrs == NULL || PyDict_GetItemWithError(cast_to, dtype) == NULL)
            made = PyErr_Occurred() ? NULL : Py_NewRef(t);
        else if ((made = record_ordinary(cast_op, &t, 1, attrs, 1, 0, 0, 1)) == NULL && !PyErr_Occurred())
            made = PyObject_CallFunction(slow_record, "O(O)O", cast_op, t, attrs);
        if (made == NULL)
            Py_CLEAR(out);
        else
            PyTuple_SET_ITEM(out, i, made);
    }
    return out;
}

/* Record if all is ordinary. Gives the result; NULL with an error; or NULL without one: ask recording.py.
   ``cast``: the operands are as mixed precision wants them. */
static PyObject *record_ordinary(PyObject *op, PyObject *const *operands, Py_ssize_t n, PyObject *attrs, Py_ssize_t depth, int view,
                                 int first, int cast)
{
    PyObject *trace = trace_of_thread(), *result = NULL;
    if (trace == NULL)
        return NULL;
    PyObject *modes = SLOT(trace, trace_at.modes);
    if (number_in(trace, trace_at.size) >= number_in(trace, trace_at.stop))
        goto end;
    int waits = cast ? 0 : is_cast(op, modes, operands, n);
    if (waits < 0)
        goto end;
    if (waits) {
        PyObject *inputs = lowered(operands, n, SLOT(modes, modes_at.autocast));
        if (inputs != NULL && (result = record_ordinary(op, &PyTuple_GET_ITEM(inputs, 0), n, attrs, depth, view, first, 1)) == NULL && !PyErr_Occurred())
            result = PyObject_CallFunction(slow_record, "OOOnOO", op, inputs, attrs, depth, view ? Py_True : Py_False, first ? Py_True : Py_False);
        Py_XDECREF(inputs);
        goto end;
    }
    PyObject *rule = are_operands(operands, n) ? rule_of(op, attrs, operands, n) : NULL;
    if (rule == NULL || occupy(trace) <= 0)
        goto end;
    int taped = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!fits(operands[i], trace)) {
            vacate(trace);
            goto end;
        }
        taped |= SLOT(operands[i], operand._rg) == Py_True;
    }
    taped = taped && SLOT(modes, modes_at.grad) == Py_True && SLOT(rule, rule_at.differentiable) == Py_True;
    result = append(trace, rule, op, attrs, operands, n, taped, depth, view, first);
    if (result != NULL)
        vacate(trace);
    else
        mend(trace);
end:
    Py_DECREF(trace);
    return result;
}

static PyObject *const *operands_of(PyObject *inputs, Py_ssize_t *n)
{
    *n = PyTuple_GET_SIZE(inputs);
    return &PyTuple_GET_ITEM(inputs, 0);
}

static PyObject *record(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    PyObject *given[6] = {NULL, NULL, empty, one, Py_False, Py_False};
    static const char *const parameters[] = {"op", "inputs", "attrs", "depth", "view", "first"};
    int ordinary = nargs <= 6;
    for (Py_ssize_t i = 0; ordinary && i < nargs; i++)
        given[i] = args[i];
    for (Py_ssize_t k = 0; ordinary && names != NULL && k < PyTuple_GET_SIZE(names); k++) {
        int i = 0;
        while (i < 6 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, k), parameters[i]))
            i++;
        ordinary = i < 6;
        if (ordinary)
            given[i] = args[nargs + k];
    }
    if (ordinary && given[0] != NULL && given[1] != NULL && PyTuple_CheckExact(given[1])) {
        Py_ssize_t n;
        PyObject *const *operands = operands_of(given[1], &n);
        PyObject *out = record_ordinary(given[0], operands, n, given[2], PyLong_AsSsize_t(given[3]), given[4] == Py_True, given[5] == Py_True, 0);
        if (out != NULL || PyErr_Occurred())
            return out;
    }
    return PyObject_Vectorcall(slow_record, args, nargs, names);
}

/* gt/autocasting.py's ``low``. */
static PyObject *low(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *trace = trace_of_thread();
    if (trace == NULL)
        return NULL;
    PyObject *want = Py_NewRef(SLOT(SLOT(trace, trace_at.modes), modes_at.autocast)), *out = NULL;
    Py_DECREF(trace);
    int ordinary = want != Py_None;
    for (Py_ssize_t i = 0; ordinary && i < nargs; i++)
        ordinary = args[i] == Py_None || PyObject_TypeCheck(args[i], Operand);
    out = ordinary ? lowered(args, nargs, want) : PyObject_Vectorcall(slow_low, args, nargs, NULL);
    Py_DECREF(want);
    return out;
}

/* gt/autocasting.py's ``cast_all``. */
static PyObject *cast_all(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs == 2 && PyTuple_CheckExact(args[0]))
        return lowered(&PyTuple_GET_ITEM(args[0], 0), PyTuple_GET_SIZE(args[0]), args[1]);
    PyErr_SetString(PyExc_TypeError, "expected a tuple and a dtype");
    return NULL;
}

static PyObject *record_pair(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs == 3) {
        PyObject *out = record_ordinary(args[0], args + 1, 2, empty, 2, 0, 0, 0);
        if (out != NULL || PyErr_Occurred())
            return out;
    }
    return PyObject_Vectorcall(slow_pair, args, nargs, NULL);
}

/* Let a tensor name a result in place of what it named. ``entry``: how many entries there are with the one that does it. */
static int rename_result(PyObject *trace, PyObject *t, PyObject *index, PyObject *entry)
{
    PyObject *replaced = SLOT(t, operand._index), *overwritten = SLOT(trace, trace_at.overwritten);
    if (SLOT(t, operand._trace) != trace && !Py_IS_TYPE(SLOT(t, operand._buffer), Buffer)) {
        PyErr_SetString(PyExc_RuntimeError, "a tensor was changed by another thread while it was updated");
        return -1;
    }
    if (put_number(t, operand._version, number_in(t, operand._version) + 1))
        return -1;
    if (SLOT(t, operand._trace) != trace) {
        PyObject *mark = SLOT(SLOT(t, operand._buffer), buffer_at.mark);
        if (mark != NULL && Py_IS_TYPE(mark, Mark))
            put(mark, mark_at.written, Py_True);
        replaced = PyDict_GetItemWithError(SLOT(trace, trace_at.input_ids), SLOT(SLOT(t, operand._buffer), buffer_at.id));
        if ((replaced == NULL && PyErr_Occurred()) || PyList_Append(SLOT(trace, trace_at.handles), t))
            return -1;
    }
    if (replaced != NULL && PyDict_SetItem(overwritten, replaced, entry))
        return -1;
    if (Py_IS_TYPE(SLOT(t, operand._buffer), Buffer)) /* what is no input would go with another run */
        put(t, operand._before, replaced != NULL ? SLOT(SLOT(t, operand._buffer), buffer_at.id) : SLOT(t, operand._buffer));
    put(t, operand._trace, trace);
    put(t, operand._index, index);
    put(t, operand._buffer, Py_None);
    put(t, operand._tape, Py_None);
    return SLOT(t, operand._rg) == Py_True && SLOT(t, operand._leaf) == Py_True ? accumulate(trace, t, index) : 0;
}

static int append_into(PyObject *trace, PyObject *rule, PyObject *const *operands, Py_ssize_t n, PyObject *const *targets)
{
    PyObject *own = entry_of(trace, SLOT(rule, rule_at.id), operands, n);
    if (own == NULL)
        return -1;
    int failed = append_place(trace, 1) || !is_alone(trace, number_in(trace, trace_at.size))
        || PyList_Append(SLOT(trace, trace_at.code), own);
    Py_DECREF(own);
    Py_ssize_t at = number_in(trace, trace_at.size), count = PyTuple_GET_SIZE(SLOT(rule, rule_at.outputs));
    if (failed || put_number(trace, trace_at.size, at + count))
        return -1;
    PyObject *entry = PyLong_FromSsize_t(PyList_GET_SIZE(SLOT(trace, trace_at.code)));
    for (Py_ssize_t i = 0; entry != NULL && i < count; i++) {
        PyObject *index = PyLong_FromSsize_t(at + i);
        if (index == NULL || rename_result(trace, targets[i], index, entry))
            Py_CLEAR(entry);
        Py_XDECREF(index);
    }
    Py_XDECREF(entry);
    return entry == NULL ? -1 : 0;
}

static PyObject *record_into(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4 || !PyTuple_CheckExact(args[1]) || !(PyTuple_CheckExact(args[3]) || PyList_CheckExact(args[3])))
        return PyObject_Vectorcall(slow_into, args, nargs, NULL);
    Py_ssize_t n, count = PySequence_Fast_GET_SIZE(args[3]);
    PyObject *const *operands = operands_of(args[1], &n), *const *targets = PySequence_Fast_ITEMS(args[3]);
    PyObject *trace = trace_of_thread(), *rule = NULL;
    if (trace == NULL)
        return NULL;
    int ordinary = number_in(trace, trace_at.size) < number_in(trace, trace_at.stop) && are_operands(operands, n)
        && are_operands(targets, count) && (rule = rule_of(args[0], args[2], operands, n)) != NULL
        && PyTuple_GET_SIZE(SLOT(rule, rule_at.outputs)) == count && occupy(trace) > 0;
    if (ordinary) {
        for (Py_ssize_t i = 0; ordinary && i < n; i++)
            ordinary = fits(operands[i], trace);
        for (Py_ssize_t i = 0; ordinary && i < count; i++)
            ordinary = fits(targets[i], trace) && SLOT(targets[i], operand._base) == Py_None
                && SLOT(targets[i], operand._type) == PyTuple_GET_ITEM(SLOT(rule, rule_at.outputs), i)
                && (SLOT(targets[i], operand._trace) == trace || Py_IS_TYPE(SLOT(targets[i], operand._buffer), Buffer));
        int failed = 0;
        if (!ordinary || append_into(trace, rule, operands, n, targets) == 0)
            vacate(trace);
        else
            failed = !mend(trace), ordinary = 0;
        if (ordinary || failed) {
            Py_DECREF(trace);
            return failed ? NULL : Py_NewRef(Py_None);
        }
    }
    Py_DECREF(trace);
    return PyErr_Occurred() ? NULL : PyObject_Vectorcall(slow_into, args, nargs, NULL);
}

/* -- what is left when a trace is flushed */

/* Give the handles that name a pending value: gt/flush.py's ``_live_handles``. A handle that only a list holds is dead. */
static PyObject *live_handles(PyObject *module, PyObject *trace)
{
    if (!Py_IS_TYPE(trace, Trace)) {
        PyErr_SetString(PyExc_TypeError, "expected a Trace");
        return NULL;
    }
    PyObject *handles = Py_NewRef(SLOT(trace, trace_at.handles)), *live = PyList_New(0), *none = PyList_New(0);
    if (live == NULL || none == NULL)
        goto fail;
    put(trace, trace_at.handles, none);
    for (Py_ssize_t i = PyList_GET_SIZE(handles) - 1; i >= 0; i--) { /* backwards: views go before the bases they hold */
        PyObject *t = PyList_GET_ITEM(handles, i);
        PyList_SET_ITEM(handles, i, Py_NewRef(Py_None));
        if (Py_REFCNT(t) > 1 && SLOT(t, operand._trace) == trace) {
            if (SLOT(t, operand._base) == Py_None) {
                if (PyList_Append(live, t)) {
                    Py_DECREF(t);
                    goto fail;
                }
            } else {
                if (SLOT(t, operand._rg) == Py_True && SLOT(t, operand._leaf) != Py_True) {
                    PyObject *tape = Py_XNewRef(PyDict_GetItemWithError(SLOT(trace, trace_at.links), SLOT(t, operand._index)));
                    if (tape == NULL && !PyErr_Occurred())
                        tape = PyTuple_Pack(2, trace, SLOT(t, operand._index));
                    if (tape == NULL) {
                        Py_DECREF(t);
                        goto fail;
                    }
                    put(t, operand._tape, tape);
                    put(trace, trace_at.viewed, Py_True);
                    Py_DECREF(tape);
                } else {
                    put(t, operand._tape, Py_None);
                }
                put(t, operand._trace, Py_None);
                PyObject *seen = PyLong_FromSsize_t(-2 - number_in(t, operand._seen));
                if (seen == NULL) {
                    Py_DECREF(t);
                    goto fail;
                }
                put(t, operand._seen, seen);
                Py_DECREF(seen);
            }
        }
        Py_DECREF(t);
    }
    Py_CLEAR(handles);
    for (Py_ssize_t i = PyList_GET_SIZE(live) - 1; i >= 0; i--) /* but those that what was found dead meanwhile had held */
        if (Py_REFCNT(PyList_GET_ITEM(live, i)) > 1 && PyList_Append(none, PyList_GET_ITEM(live, i)))
            goto fail;
    Py_DECREF(live);
    live = PyList_GetSlice(none, 0, PyList_GET_SIZE(none));
    Py_DECREF(none);
    return live;
fail:
    Py_XDECREF(handles);
    Py_XDECREF(live);
    Py_XDECREF(none);
    return NULL;
}

/* Order (value id, type) by the ids. */
struct named { Py_ssize_t id; PyObject *index, *type; };

static int by_id(const void *a, const void *b)
{
    Py_ssize_t x = ((const struct named *)a)->id, y = ((const struct named *)b)->id;
    return x < y ? -1 : x > y;
}

/* Give the types of the values that handles name, in order: gt/flush.py's ``_named``. */
static PyObject *named(PyObject *module, PyObject *live)
{
    if (!PyList_CheckExact(live)) {
        PyErr_SetString(PyExc_TypeError, "expected a list");
        return NULL;
    }
    Py_ssize_t n = PyList_GET_SIZE(live), ordered = 1;
    struct named *found = PyMem_New(struct named, n);
    PyObject *out = found == NULL ? PyErr_NoMemory() : PyDict_New();
    for (Py_ssize_t i = 0; out != NULL && i < n; i++) {
        PyObject *t = PyList_GET_ITEM(live, i);
        found[i] = (struct named){number_in(t, operand._index), SLOT(t, operand._index), SLOT(t, operand._type)};
        ordered &= i == 0 || found[i - 1].id < found[i].id;
    }
    if (out != NULL && !ordered)
        qsort(found, n, sizeof *found, by_id);
    for (Py_ssize_t i = 0; out != NULL && i < n; i++)
        if (PyDict_SetItem(out, found[i].index, found[i].type))
            Py_CLEAR(out);
    PyMem_Free(found);
    return out;
}

/* Give which inputs nothing but the list holds, and the ids and types of all: gt/flush.py's ``_given``. */
static PyObject *given(PyObject *module, PyObject *held)
{
    if (!PyList_CheckExact(held)) {
        PyErr_SetString(PyExc_TypeError, "expected a list");
        return NULL;
    }
    Py_ssize_t n = PyList_GET_SIZE(held), at = 0;
    for (Py_ssize_t i = 0; i < n; i++)
        at += Py_REFCNT(PyList_GET_ITEM(held, i)) == 1;
    PyObject *donated = PyTuple_New(at), *ids = PyList_New(n), *types = PyList_New(n);
    if (donated == NULL || ids == NULL || types == NULL)
        goto fail;
    at = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *buffer = PyList_GET_ITEM(held, i);
        if (Py_REFCNT(buffer) == 1) {
            PyObject *place = PyLong_FromSsize_t(i);
            if (place == NULL)
                goto fail;
            PyTuple_SET_ITEM(donated, at++, place);
        }
        PyList_SET_ITEM(ids, i, Py_NewRef(SLOT(buffer, buffer_at.id)));
        PyList_SET_ITEM(types, i, Py_NewRef(SLOT(buffer, buffer_at.type)));
    }
    return Py_BuildValue("NNN", donated, ids, types);
fail:
    Py_XDECREF(donated);
    Py_XDECREF(ids);
    Py_XDECREF(types);
    return NULL;
}

/* Name the results of a run: ``named_buffers`` of gt/buffers.py. */
static PyObject *new_buffers(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !PyList_CheckExact(args[0]) || !PyList_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "expected a list of types, a session and a list of buffers");
        return NULL;
    }
    PyObject *types = args[0], *spare = args[2], *made = PyList_New(PyList_GET_SIZE(types));
    for (Py_ssize_t i = 0; made != NULL && i < PyList_GET_SIZE(types); i++) {
        PyObject *id = PyIter_Next(ids), *buffer = NULL;
        if (id != NULL && i < PyList_GET_SIZE(spare) && SLOT(PyList_GET_ITEM(spare, i), buffer_at.last) == NULL) /* else it has its number for good */
            buffer = Py_NewRef(PyList_GET_ITEM(spare, i));
        else if (id != NULL)
            buffer = PyBaseObject_Type.tp_new(Buffer, empty, NULL);
        if (buffer == NULL) {
            Py_XDECREF(id);
            Py_CLEAR(made);
            break;
        }
        put(buffer, buffer_at.id, id);
        Py_DECREF(id);
        put(buffer, buffer_at.type, PyList_GET_ITEM(types, i));
        put(buffer, buffer_at.session, args[1]);
        put(buffer, buffer_at.mark, Py_None);
        PyList_SET_ITEM(made, i, buffer);
    }
    for (Py_ssize_t i = PyList_GET_SIZE(types); made != NULL && i < PyList_GET_SIZE(spare); i++) /* the run frees it, not its finalizer */
        if (SLOT(PyList_GET_ITEM(spare, i), buffer_at.last) == NULL && put_number(PyList_GET_ITEM(spare, i), buffer_at.id, -1 - number_in(PyList_GET_ITEM(spare, i), buffer_at.id)))
            Py_CLEAR(made);
    return made;
}

/* Let handles name what a run makes: gt/flush.py's ``_take``. */
static PyObject *take(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !Py_IS_TYPE(args[0], Trace) || !PyList_CheckExact(args[1]) || !PyDict_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "expected a Trace, a list of handles and a dict of buffers");
        return NULL;
    }
    int taped = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[1]); i++) {
        PyObject *t = PyList_GET_ITEM(args[1], i), *buffer = PyDict_GetItemWithError(args[2], SLOT(t, operand._index));
        if (buffer == NULL) {
            if (!PyErr_Occurred())
                PyErr_SetObject(PyExc_KeyError, SLOT(t, operand._index));
            return NULL;
        }
        if (SLOT(t, operand._rg) == Py_True && SLOT(t, operand._leaf) != Py_True) {
            PyObject *tape = PyTuple_Pack(2, args[0], SLOT(t, operand._index));
            if (tape == NULL)
                return NULL;
            put(t, operand._tape, tape);
            Py_DECREF(tape);
            taped = 1;
        } else {
            put(t, operand._tape, Py_None);
        }
        put(t, operand._buffer, buffer);
        put(t, operand._trace, Py_None);
        Py_CLEAR(SLOT(t, operand._before));
    }
    return PyBool_FromLong(taped);
}

struct replaced { Py_ssize_t id; PyObject *before; };

static int by_result(const void *a, const void *b)
{
    Py_ssize_t x = ((const struct replaced *)a)->id, y = ((const struct replaced *)b)->id;
    return x < y ? -1 : x > y;
}

/* Give which buffers the tensors of a run's outputs had before: gt/flush.py's ``_replaced``. ``outputs`` are in order. */
static PyObject *replaced(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyList_CheckExact(args[0]) || !PyTuple_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "expected a list of handles and a tuple of ids");
        return NULL;
    }
    Py_ssize_t n = PyList_GET_SIZE(args[0]), m = PyTuple_GET_SIZE(args[1]), any = 0, ordered = 1, at = 0;
    struct replaced *found = PyMem_New(struct replaced, n);
    if (found == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *t = PyList_GET_ITEM(args[0], i), *before = SLOT(t, operand._before);
        if (before != NULL && Py_IS_TYPE(before, Buffer)) /* it goes with this run */
            put(t, operand._before, SLOT(before, buffer_at.id));
        found[i] = (struct replaced){number_in(t, operand._index), SLOT(t, operand._before)};
        any |= found[i].before != NULL;
        ordered &= i == 0 || found[i - 1].id <= found[i].id;
    }
    PyObject *out = PyTuple_New(any ? m : 0);
    if (out != NULL && any && !ordered)
        qsort(found, n, sizeof *found, by_result);
    for (Py_ssize_t i = 0; out != NULL && any && i < m; i++) {
        Py_ssize_t id = PyLong_AsSsize_t(PyTuple_GET_ITEM(args[1], i));
        while (at < n && found[at].id < id)
            at++;
        PyObject *before = at < n && found[at].id == id && (at + 1 == n || found[at + 1].id != id) ? found[at].before : NULL;
        PyTuple_SET_ITEM(out, i, Py_NewRef(before == NULL ? minus_one : before));
    }
    PyMem_Free(found);
    return out;
}

/* -- attributes of layers */

/* Give what a layer has registered under a name: gt/nn/module.py's ``Module.__getattr__``, which is asked for all else. */
static PyObject *registered(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *own = nargs == 2 ? PyObject_GenericGetDict(args[0], NULL) : NULL, *found = NULL;
    PyObject *const tables[] = {name._parameters, name._modules, name._buffers};
    for (int i = 0; own != NULL && i < 3 && found == NULL; i++) {
        PyObject *table = PyDict_GetItemWithError(own, tables[i]);
        if (table == NULL || !PyDict_Check(table))
            break;
        found = PyDict_GetItemWithError(table, args[1]);
    }
    Py_XINCREF(found);
    Py_XDECREF(own);
    return found != NULL || PyErr_Occurred() ? found : PyObject_Vectorcall(slow_attribute, args, nargs, NULL);
}

static PyMethodDef registered_method = {"__getattr__", (PyCFunction)(void (*)(void))registered, METH_FASTCALL, "Give a registered attribute."};

/* Give the method that does what Python's does, which it asks where nothing is registered. */
static PyObject *registered_or(PyObject *module, PyObject *function)
{
    PyObject *plain = PyCFunction_New(&registered_method, NULL), *method = plain == NULL ? NULL : PyInstanceMethod_New(plain);
    Py_XDECREF(plain);
    Py_XSETREF(slow_attribute, Py_NewRef(function));
    return method;
}

/* -- set up */

/* Take the cast op, its attributes by dtype, and the functions in Python for what is not ordinary. */
static PyObject *set_casts(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4 || !PyDict_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "expected an op, a dict and two functions");
        return NULL;
    }
    Py_XSETREF(cast_op, Py_NewRef(args[0]));
    Py_XSETREF(cast_to, Py_NewRef(args[1]));
    Py_XSETREF(slow_low, Py_NewRef(args[2]));
    Py_XSETREF(slow_cast, Py_NewRef(args[3]));
    Py_RETURN_NONE;
}

#define AT(table, type, slot) ((table.slot = offset(type, #slot)) < 0)

static PyObject *set_up(PyObject *module, PyObject *given)
{
#define TAKE(target, key) if ((target = (void *)PyDict_GetItemString(given, key)) == NULL) { PyErr_SetString(PyExc_KeyError, key); return NULL; } Py_INCREF(target)
    TAKE(Operand, "Operand"); TAKE(Number, "Number"); TAKE(Trace, "Trace"); TAKE(Modes, "Modes"); TAKE(Rule, "Rule");
    TAKE(Buffer, "Buffer"); TAKE(Mark, "Mark"); TAKE(TensorType, "TensorType"); TAKE(Code, "Code"); TAKE(state, "state"); TAKE(rules, "_rules"); TAKE(ours, "_ours");
    TAKE(input_entries, "_input_entries"); TAKE(number_entries, "_number_entries"); TAKE(stale, "_Stale");
    TAKE(storage_class, "Storage"); TAKE(ids, "_ids"); TAKE(slow_record, "_record"); TAKE(slow_pair, "_record_pair"); TAKE(slow_into, "_record_into");
#undef TAKE
    if (AT(operand, Operand, _trace) || AT(operand, Operand, _index) || AT(operand, Operand, _type) || AT(operand, Operand, _buffer)
        || AT(operand, Operand, _base) || AT(operand, Operand, _rg) || AT(operand, Operand, _leaf) || AT(operand, Operand, _root)
        || AT(operand, Operand, _view) || AT(operand, Operand, _storage) || AT(operand, Operand, _seen)
        || AT(operand, Operand, _version) || AT(operand, Operand, _tape) || AT(operand, Operand, _name) || AT(operand, Operand, _before) || AT(number, Number, value)
        || AT(trace_at, Trace, modes) || AT(trace_at, Trace, code) || AT(trace_at, Trace, where) || AT(trace_at, Trace, handles)
        || AT(trace_at, Trace, size) || AT(trace_at, Trace, inputs) || AT(trace_at, Trace, input_ids) || AT(trace_at, Trace, scalars)
        || AT(trace_at, Trace, scalar_ids) || AT(trace_at, Trace, leaves) || AT(trace_at, Trace, links)
        || AT(trace_at, Trace, overwritten) || AT(trace_at, Trace, closing) || AT(trace_at, Trace, sealed) || AT(trace_at, Trace, session)
        || AT(trace_at, Trace, names) || AT(trace_at, Trace, stop) || AT(trace_at, Trace, weighed) || AT(trace_at, Trace, busy)
        || AT(trace_at, Trace, held) || AT(trace_at, Trace, recorder) || AT(modes_at, Modes, grad) || AT(modes_at, Modes, autocast)
        || AT(rule_at, Rule, id) || AT(rule_at, Rule, taped) || AT(rule_at, Rule, outputs) || AT(rule_at, Rule, single)
        || AT(rule_at, Rule, count) || AT(rule_at, Rule, differentiable) || AT(buffer_at, Buffer, id) || AT(buffer_at, Buffer, type)
        || AT(buffer_at, Buffer, session) || AT(buffer_at, Buffer, mark) || AT(buffer_at, Buffer, last) || AT(mark_at, Mark, written) || AT(type_at, TensorType, nbytes) || AT(type_at, TensorType, differentiable) || AT(type_at, TensorType, dtype) || AT(code_at, Code, entries) || AT(code_at, Code, where)
        || AT(trace_at, Trace, expected) || AT(trace_at, Trace, viewed))
        return NULL;
#define NAME(attribute) if ((name.attribute = PyUnicode_InternFromString(#attribute)) == NULL) return NULL
    NAME(trace); NAME(autocast); NAME(_parameters); NAME(_modules); NAME(_buffers); NAME(__name__); NAME(enter); NAME(mend); NAME(weigh);
#undef NAME
    if ((empty = PyTuple_New(0)) == NULL || (no_name = PyUnicode_FromString("")) == NULL || (zero = PyLong_FromLong(0)) == NULL
        || (one = PyLong_FromLong(1)) == NULL || (minus_one = PyLong_FromLong(-1)) == NULL)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *set_tensor(PyObject *module, PyObject *type)
{
    if (!PyType_Check(type) || !PyType_IsSubtype((PyTypeObject *)type, Operand)) {
        PyErr_SetString(PyExc_TypeError, "the tensor class is an Operand");
        return NULL;
    }
    Tensor = (PyTypeObject *)Py_NewRef(type);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"record", (PyCFunction)(void (*)(void))record, METH_FASTCALL | METH_KEYWORDS, "Record an op: gt.recording.record."},
    {"record_pair", (PyCFunction)(void (*)(void))record_pair, METH_FASTCALL, "Record an op of two tensors: gt.recording.record_pair."},
    {"record_into", (PyCFunction)(void (*)(void))record_into, METH_FASTCALL, "Record an update: gt.recording.record_into."},
    {"low", (PyCFunction)(void (*)(void))low, METH_FASTCALL, "Cast the operands of a matrix product: gt.autocasting.low."},
    {"cast_all", (PyCFunction)(void (*)(void))cast_all, METH_FASTCALL, "Cast what a function is given: gt.autocasting.cast_all."},
    {"set_casts", (PyCFunction)(void (*)(void))set_casts, METH_FASTCALL, "Take what mixed precision casts with."},
    {"registered_or", registered_or, METH_O, "Give a method that gives registered attributes: gt.nn.module."},
    {"live_handles", live_handles, METH_O, "Give the handles that name a pending value of a trace: gt.flush."},
    {"named", named, METH_O, "Give the types of the values that handles name, in order: gt.flush."},
    {"given", given, METH_O, "Give which inputs of a run it may free, and the ids and types of all: gt.flush."},
    {"replaced", (PyCFunction)(void (*)(void))replaced, METH_FASTCALL, "Give which buffers the tensors of outputs had before: gt.flush."},
    {"new_buffers", (PyCFunction)(void (*)(void))new_buffers, METH_FASTCALL, "Name the results of a run: gt.buffers."},
    {"take", (PyCFunction)(void (*)(void))take, METH_FASTCALL, "Let handles name what a run makes: gt.flush."},
    {"set_up", set_up, METH_O, "Take the names of gt.recording."},
    {"set_tensor", set_tensor, METH_O, "Take the class of results."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "gt._recording", "The ordinary case of recording, in C.", -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__recording(void) { return PyModule_Create(&definition); }
