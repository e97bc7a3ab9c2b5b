declare i64 @malloc(i64)
declare i64 @calloc(i64, i64)
declare void @free(i64)
declare i64 @malloc_usable_size(i64)
declare i64 @memcpy(i64, i64, i64)
declare i32 @madvise(i64, i64, i32)

define i64 @array_in(i64 %block, i64 %size) {
  %behind = add i64 %block, 64
  %array = and i64 %behind, -64
  %none = icmp eq i64 %block, 0
  br i1 %none, label %failed, label %note
note:
  %before = sub i64 %array, 8
  %word = inttoptr i64 %before to i64*
  store i64 %block, i64* %word
  %large = icmp uge i64 %size, 4194304
  br i1 %large, label %advise, label %done
advise:
  %inside = add i64 %array, 4095
  %page = and i64 %inside, -4096
  %rest = sub i64 %size, 4096
  %answer = call i32 @madvise(i64 %page, i64 %rest, i32 14)
  br label %done
done:
  ret i64 %array
failed:
  ret i64 0
}
define i64 @block_of(i64 %array) {
  %none = icmp eq i64 %array, 0
  br i1 %none, label %nothing, label %look
nothing:
  ret i64 0
look:
  %before = sub i64 %array, 8
  %word = inttoptr i64 %before to i64*
  %block = load i64, i64* %word
  ret i64 %block
}
define i64 @new(i64 %context, i64 %size) {
  %whole = add i64 %size, 64
  %block = call i64 @malloc(i64 %whole)
  %array = call i64 @array_in(i64 %block, i64 %size)
  ret i64 %array
}
define i64 @new_zeros(i64 %context, i64 %count, i64 %each) {
  %size = mul i64 %count, %each
  %whole = add i64 %size, 64
  %block = call i64 @calloc(i64 1, i64 %whole)
  %array = call i64 @array_in(i64 %block, i64 %size)
  ret i64 %array
}
define i64 @resize(i64 %context, i64 %old, i64 %size) {
  %array = call i64 @new(i64 0, i64 %size)
  %block = call i64 @block_of(i64 %old)
  %usable = call i64 @malloc_usable_size(i64 %block)
  %end = add i64 %block, %usable
  %held = sub i64 %end, %old
  %fewer = icmp ult i64 %held, %size
  %count = select i1 %fewer, i64 %held, i64 %size
  %none = icmp eq i64 %array, 0
  br i1 %none, label %done, label %move
move:
  %answer = call i64 @memcpy(i64 %array, i64 %old, i64 %count)
  call void @free(i64 %block)
  br label %done
done:
  ret i64 %array
}
define void @delete(i64 %context, i64 %array, i64 %size) {
  %block = call i64 @block_of(i64 %array)
  call void @free(i64 %block)
  ret void
}
