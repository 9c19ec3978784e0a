"""What is read in the text of compiled programs: small ones by hand, and one that JAX compiles."""

import jax
import jax.numpy as jnp
import pytest

from t5x_lite.plan.hlo import Collective, Kernel, Operation, Traffic, array_bytes, read


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("f32[]", 4),
        ("f32[8,128]{1,0:T(8,128)}", 4096),
        ("bf16[1,128,256]{2,1,0:T(8,128)(2,1)S(1)}", 65536),
        ("(s32[], f32[2], /*index=5*/pred[3]{0})", 15),
        ("s4[3]", 2),
        ("f8e4m3fn[4]", 4),
        ("c64[2]", 16),
        ("token[]", 0),
        ("()", 0),
    ],
)
def test_array_bytes(shape, size):
    assert array_bytes(shape) == size


LOOP = """\
HloModule jit_step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%cond (p: (s32[], f32[8])) -> pred[] {
  %p = (s32[]{:T(128)}, f32[8]{0}) parameter(0)
  %limit = s32[]{:T(128)} constant(12)
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%body (q: (s32[], f32[8])) -> (s32[], f32[8]) {
  %q = (s32[], f32[8]) parameter(0)
  %x = f32[8]{0} get-tuple-element(%q), index=1
  %all-reduce.1 = f32[8]{0} all-reduce(%x), channel_id=1, replica_groups={{0,1}}, to_apply=%add
  %dot = f32[8] fusion(%x), kind=kLoop, calls=%f, backend_config={"estimated_cycles":"100"}
  ROOT %t = (s32[], f32[8]) tuple(%i, %all-reduce.1)
}

ENTRY %main (arg: f32[8]) -> f32[16] {
  %arg = f32[8]{0} parameter(0)
  %init = (s32[], f32[8]) tuple(%zero, %arg)
  %loop = (s32[], f32[8]) while(%init), condition=%cond, body=%body
  %y = f32[8]{0} get-tuple-element(%loop), index=1
  %huge = f32[8] copy(%y), backend_config={"estimated_cycles":"9223372036854775807"}
  %small = f32[8] copy(%y), backend_config={"estimated_cycles":"7"}
  ROOT %all-gather.2 = f32[16]{0} all-gather(%y), channel_id=2, dimensions={0}
}
"""


def test_a_loop_s_body_counts_as_often_as_it_runs():
    found = read(LOOP)
    assert found.collectives == {
        "all-reduce": Traffic(count=12, bytes=12 * 32),
        "all-gather": Traffic(count=1, bytes=64),
    }
    assert found.cycles == 12 * 100 + 7
    assert found.unknown_loops == 0


def test_operations_by_source_the_costliest_first():
    named = LOOP.replace(
        "calls=%f, backend", 'calls=%f, metadata={op_name="jit(f)/while/body/dot"}, backend'
    ).replace(
        "  ROOT %all-gather.2",
        '  %more = f32[8] copy(%y), backend_config={"estimated_cycles":"5"}\n  ROOT %all-gather.2',
    )
    assert read(named).operations == (
        Operation("jit(f)/while/body/dot", count=12, cycles=1200),
        Operation("copy", count=2, cycles=12),
    )


def test_of_a_conditional_the_costlier_branch_counts():
    text = """\
%cheap (p: f32[]) -> f32[] {
  ROOT %one = f32[] copy(%p), backend_config={"estimated_cycles":"1"}
}

%dear (p: f32[]) -> f32[] {
  ROOT %two = f32[] add(%p, %p), backend_config={"estimated_cycles":"2"}
}

ENTRY %main (p: f32[]) -> f32[] {
  ROOT %c = f32[] conditional(%i, %p, %p), branch_computations={%cheap, %dear}
}
"""
    assert read(text).operations == (Operation("add", count=1, cycles=2),)
    assert read(text).cycles == 2


def test_a_known_trip_count_goes_before_the_condition():
    text = LOOP.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"5"}}')
    assert read(text).collectives["all-reduce"] == Traffic(count=5, bytes=5 * 32)


def test_loops_inside_of_loops():
    outer = """\
%outer (q: (s32[], f32[8])) -> (s32[], f32[8]) {
  ROOT %inner = (s32[], f32[8]) while(%q), condition=%cond, body=%body
}

ENTRY"""
    text = LOOP.replace("ENTRY", outer).replace(
        "condition=%cond, body=%body\n  %y",
        'condition=%cond, body=%outer, backend_config={"known_trip_count":{"n":"3"}}\n  %y',
    )
    assert read(text).collectives["all-reduce"] == Traffic(count=36, bytes=36 * 32)
    assert read(text).cycles == 36 * 100 + 7


def test_a_loop_of_unknown_length_counts_once_and_is_told():
    text = LOOP.replace("  %limit = s32[]{:T(128)} constant(12)\n", "")
    found = read(text)
    assert found.collectives["all-reduce"] == Traffic(count=1, bytes=32)
    assert found.unknown_loops == 1


def test_collectives_inside_of_fusions_calls_and_conditionals():
    text = """\
%fused (p: f32[4]) -> f32[2] {
  %p = f32[4] parameter(0)
  ROOT %rs = f32[2] reduce-scatter(%p), channel_id=1, dimensions={0}, to_apply=%add
}

%called (p2: f32[4]) -> f32[4] {
  %p2 = f32[4] parameter(0)
  ROOT %cp = f32[4] collective-permute(%p2), channel_id=2, source_target_pairs={{0,1}}
}

%yes (p3: f32[4]) -> f32[4] {
  %p3 = f32[4] parameter(0)
  ROOT %aa = f32[4] all-to-all(%p3), channel_id=3, backend_config={"estimated_cycles":"50"}
}

%no (p4: f32[4]) -> f32[4] {
  ROOT %p4 = f32[4] parameter(0)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4] parameter(0)
  %a = f32[2] fusion(%x), kind=kCustom, calls=%fused, backend_config={"estimated_cycles":"9"}
  %b = f32[4] call(%x), to_apply=%called
  ROOT %c = f32[4] conditional(%index, %x, %x), branch_computations={%yes, %no}
}
"""
    found = read(text)
    assert found.collectives == {
        "reduce-scatter": Traffic(count=1, bytes=16),
        "collective-permute": Traffic(count=1, bytes=16),
        "all-to-all": Traffic(count=1, bytes=16),
    }
    assert found.cycles == 9 + 50


def test_asynchronous_collectives_count_once():
    text = """\
%first (p: bf16[4]) -> bf16[8] {
  %p = bf16[4] parameter(0)
  ROOT %g1 = bf16[8] all-gather(%p), channel_id=7, dimensions={0}
}

%second (p2: bf16[4]) -> bf16[8] {
  %p2 = bf16[4] parameter(0)
  ROOT %g2 = bf16[8] all-gather(%p2), channel_id=7, dimensions={0}
}

ENTRY %main (x: bf16[4], y: f32[6]) -> bf16[8] {
  %x = bf16[4] parameter(0)
  %y = f32[6] parameter(1)
  %a = bf16[8] fusion(%x), kind=kCustom, calls=%first
  %b = bf16[8] fusion(%x), kind=kOutput, calls=%second
  %s = (bf16[4], bf16[8]) all-gather-start(%x), channel_id=8, dimensions={0}
  %d = bf16[8] all-gather-done(%s)
  %r = f32[6] all-reduce-start(%y), channel_id=9, to_apply=%add
  ROOT %e = f32[6] all-reduce-done(%r)
}
"""
    found = read(text)
    assert found.collectives == {
        "all-gather": Traffic(count=2, bytes=16 + 16),
        "all-reduce": Traffic(count=1, bytes=24),
    }
    assert found.cycles is None


def test_a_program_of_this_jax():
    def sums(x):
        return jax.lax.scan(lambda carry, row: (carry + row @ x, None), x[0], x)[0]

    text = jax.jit(sums).lower(jnp.zeros((7, 7))).compile().as_text()
    found = read(text)
    assert (found.collectives, found.cycles, found.unknown_loops) == ({}, None, 0)
    assert " while(" in text


KERNELS = """\
%body (q: (s32[], f32[8])) -> (s32[], f32[8]) {
  %k.1 = f32[8] custom-call(%x), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"TUw=","cost_estimate":{"flops":"300","transcendentals":"9","bytes_accessed":"40","remote_bytes_transferred":"0"}}}
  %k.2 = f32[8] custom-call(%x), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"TUw="}}
  %other = f32[8] custom-call(%x), custom_call_target="Sharding"
}

ENTRY %main (arg: f32[8]) -> f32[8] {
  %loop = (s32[], f32[8]) while(%init), body=%body, backend_config={"known_trip_count":{"n":"12"}}
}
"""  # noqa: E501


def test_kernels_have_what_their_code_says():
    assert read(KERNELS).kernels == (Kernel(12, flops=300, bytes=40), Kernel(12, 0, 0))


def collective(text):
    """The only collective of an entry computation with these lines."""
    (found,) = read(f"ENTRY %main (x: f32[8]) -> f32[8] {{\n{text}\n}}\n").traffic
    return found


@pytest.mark.parametrize(
    ("groups", "devices"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", 4),
        ("[4,16]<=[64]", 16),
        ("[2,32]<=[32,2]T(1,0)", 32),
        ("mesh['axis_0'=64,'axis_1'=1] {'axis_0'}", 64),
        ("mesh['axis_0'=16,'axis_1'=1,'axis_2'=4], device_ids=([4,16]T(1,0)) {'axis_2'}", 4),
        ("mesh['axis_0'=8,'axis_1'=2] {'axis_0','axis_1'}", 16),
        ("mesh['axis_0'=8] {'axis_0':(1)4}", 4),
    ],
)
def test_how_many_devices_take_part(groups, devices):
    line = f"  %a = f32[8] all-reduce(f32[8] %x), channel_id=1, replica_groups={groups}"
    assert collective(line).devices == devices


def test_groups_that_are_not_written_are_all_devices():
    text = """\
HloModule jit_step, replica_count=1, num_partitions=64

ENTRY %main (x: f32[8]) -> f32[8] {
  ROOT %a = f32[8] all-reduce(f32[8] %x), replica_groups={}, to_apply=%add
}
"""
    assert [one.devices for one in read(text).traffic] == [64]


def test_collectives_one_by_one():
    assert read(LOOP).traffic == (
        Collective("all-reduce", count=12, bytes=32, devices=2, looped=True),
        Collective("all-gather", count=1, bytes=64, devices=1),
    )


def test_what_runs_beside_other_work_is_asynchronous():
    text = """\
%start (p: bf16[4]) -> bf16[8] {
  ROOT %g1 = bf16[8] all-gather(bf16[4] %p), channel_id=7, dimensions={0}
}

%beside (p2: bf16[4]) -> bf16[8] {
  ROOT %g2 = bf16[8] all-gather(bf16[4] %p2), channel_id=7, dimensions={0}
}

ENTRY %main (x: bf16[4], y: f32[6]) -> bf16[8] {
  %a = bf16[8] fusion(%x), kind=kCustom, calls=%start
  %b = bf16[8] fusion(%x), kind=kOutput, calls=%beside
  %r = f32[6] all-reduce-start(f32[6] %y), channel_id=9, to_apply=%add
  %s = f32[6] all-reduce(f32[6] %y), channel_id=10, to_apply=%add
}
"""
    found = {one.bytes: one.asynchronous for one in read(text).traffic if one.kind == "all-gather"}
    assert found == {16: True}
    reductions = [one.asynchronous for one in read(text).traffic if one.kind == "all-reduce"]
    assert reductions == [True, False]


SCATTERED = """\
%all-reduce-scatter.7 (input: f32[64,8]) -> f32[16,8] {
  %input = f32[64,8] parameter(0)
  %all-reduce.3 = f32[64,8] all-reduce(%input), channel_id=50, replica_groups={{0,1,2,3}}
  %id = u32[] partition-id()
  ROOT %slice = f32[16,8] dynamic-slice(%all-reduce.3, %id, %zero), dynamic_slice_sizes={16,8}
}

ENTRY %main (x: f32[64,8]) -> f32[16,8] {
  %x = f32[64,8] parameter(0)
  ROOT %shard = f32[16,8] fusion(%x), kind=kCustom, calls=%all-reduce-scatter.7
}
"""


def test_a_reduction_of_which_a_shard_is_kept_is_a_reduce_scatter():
    assert read(SCATTERED).traffic == (Collective("reduce-scatter", 1, 64 * 8 * 4, 4),)
    kept_whole = SCATTERED.replace("ROOT %slice = f32[16,8] dynamic-slice", "ROOT %s = f32[9] add")
    assert [one.kind for one in read(kept_whole).traffic] == ["all-reduce"]


GATHERED = """\
%padded (p: f32[2,8], zeros: f32[8,8]) -> f32[8,8] {
  ROOT %u = f32[8,8] dynamic-update-slice(%zeros, %p, %i, %j)
}

ENTRY %main (x: f32[2,8]) -> f32[8,8] {
  %one = f32[8,8] fusion(%x, %zeros), kind=kLoop, calls=%padded
  %two = bf16[16] dynamic-update-slice(%none, %x, %i)
  %sum = f32[4] add(%x, %x)
  ROOT %r = (f32[8,8], bf16[16], f32[4]) all-reduce(%one, %two, %sum), channel_id=1
}
"""


def test_an_all_reduce_of_shards_among_zeros_gathers_them():
    (found,) = read(GATHERED).traffic
    assert (found.bytes, found.gathered) == (256 + 32 + 16, 256 + 32)
